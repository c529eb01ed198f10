"""The size of a language model: what its weights and one token of its KV cache take."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

# Bytes of one weight. Quantised ones carry scales: about an eighth more at 4 bit.
_BYTES: Final = {
    "float32": 4.0,
    "fp32": 4.0,
    "float": 4.0,
    "bfloat16": 2.0,
    "bf16": 2.0,
    "float16": 2.0,
    "fp16": 2.0,
    "half": 2.0,
    "f16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "w8a8": 1.0,
    "awq": 0.56,
    "gptq": 0.56,
    "int4": 0.56,
    "nvfp4": 0.56,
    "mxfp4": 0.53,
}


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """What memory and time depend on."""

    name: str
    source: str
    parameters: float
    layers: int = 0
    """0: not known, and so is everything about the KV cache."""
    heads: int = 0
    kv_heads: int = 0
    head_size: int = 0
    hidden: int = 0
    inner: int = 0
    """Width of the feed-forward layer."""
    vocabulary: int = 0
    active: float = 0.0
    """Parameters that one token passes through; 0: all of them."""

    def kv_bytes(self, kv_dtype: str = "bfloat16") -> float | None:
        """Bytes of the KV cache for one token: two (K and V) x layers x KV heads x head size x bytes."""
        each = bytes_of(kv_dtype) or 2.0
        return 2.0 * self.layers * self.kv_heads * self.head_size * each if self.layers else None


def _shape(name: str, billions: float, *numbers: int) -> ModelShape:
    keys = ("layers", "heads", "kv_heads", "head_size", "hidden", "inner", "vocabulary")
    return ModelShape(name=name, source="table", parameters=billions * 1e9, **dict(zip(keys, numbers, strict=True)))


_SHAPES: Final = {
    shape.name: shape
    for shape in (
        _shape("llama-3.2-1b", 1.24, 16, 32, 8, 64, 2048, 8192, 128256),
        _shape("llama-3.2-3b", 3.21, 28, 24, 8, 128, 3072, 8192, 128256),
        _shape("llama-3-8b", 8.03, 32, 32, 8, 128, 4096, 14336, 128256),
        _shape("llama-3-70b", 70.6, 80, 64, 8, 128, 8192, 28672, 128256),
        _shape("llama-3.1-405b", 405.9, 126, 128, 8, 128, 16384, 53248, 128256),
        _shape("llama-2-7b", 6.74, 32, 32, 32, 128, 4096, 11008, 32000),
        _shape("llama-2-13b", 13.0, 40, 40, 40, 128, 5120, 13824, 32000),
        _shape("mistral-7b", 7.25, 32, 32, 8, 128, 4096, 14336, 32768),
        msgspec.structs.replace(_shape("mixtral-8x7b", 46.7, 32, 32, 8, 128, 4096, 14336, 32000), active=12.9e9),
        _shape("qwen2.5-0.5b", 0.49, 24, 14, 2, 64, 896, 4864, 151936),
        _shape("qwen2.5-7b", 7.62, 28, 28, 4, 128, 3584, 18944, 152064),
        _shape("qwen2.5-14b", 14.8, 48, 40, 8, 128, 5120, 13824, 152064),
        _shape("qwen2.5-32b", 32.8, 64, 40, 8, 128, 5120, 27648, 152064),
        _shape("qwen2.5-72b", 72.7, 80, 64, 8, 128, 8192, 29568, 152064),
        _shape("opt-13b", 13.0, 40, 40, 40, 128, 5120, 20480, 50272),
    )
}
_BY_SIZE: Final = {
    "1b": "llama-3.2-1b",
    "3b": "llama-3.2-3b",
    "7b": "mistral-7b",
    "8b": "llama-3-8b",
    "14b": "qwen2.5-14b",
    "32b": "qwen2.5-32b",
    "70b": "llama-3-70b",
    "72b": "qwen2.5-72b",
    "405b": "llama-3.1-405b",
}
_NAMES: Final = (
    (re.compile(r"llama-?3\.2-?1b"), "llama-3.2-1b"),
    (re.compile(r"llama-?3\.2-?3b"), "llama-3.2-3b"),
    (re.compile(r"llama-?3(\.\d)?-?8b"), "llama-3-8b"),
    (re.compile(r"llama-?3(\.\d)?-?70b"), "llama-3-70b"),
    (re.compile(r"llama-?3(\.\d)?-?405b"), "llama-3.1-405b"),
    (re.compile(r"llama-?2-?7b"), "llama-2-7b"),
    (re.compile(r"llama-?2-?13b"), "llama-2-13b"),
    (re.compile(r"mixtral-?8x7b"), "mixtral-8x7b"),
    (re.compile(r"mistral-?7b"), "mistral-7b"),
    (re.compile(r"qwen-?2\.5-?(?:[a-z]+-)?0\.5b"), "qwen2.5-0.5b"),
    (re.compile(r"qwen-?2\.5-?(?:[a-z]+-)?7b"), "qwen2.5-7b"),
    (re.compile(r"qwen-?2\.5-?(?:[a-z]+-)?14b"), "qwen2.5-14b"),
    (re.compile(r"qwen-?2\.5-?(?:[a-z]+-)?32b"), "qwen2.5-32b"),
    (re.compile(r"qwen-?2\.5-?(?:[a-z]+-)?72b"), "qwen2.5-72b"),
    (re.compile(r"opt-?13b"), "opt-13b"),
)
_PRECISION: Final = re.compile(r"(?:^|[-_.])(fp8|awq|gptq|int8|int4|w8a8|nvfp4|mxfp4)(?=$|[-_.])")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*b", re.IGNORECASE)


def bytes_of(dtype: str) -> float | None:
    """Bytes of one number of this precision; `None` for a name that is not known."""
    plain = dtype.lower().removeprefix("torch.")
    if plain in _BYTES:
        return _BYTES[plain]
    return next((size for name, size in _BYTES.items() if plain.startswith((f"{name}_", f"{name}-"))), None)


def precision_in(model: str) -> str:
    """The precision of the weights that a model's name tells: `…-FP8`, `…-AWQ`; empty where it tells none."""
    found = _PRECISION.search(model.rpartition("/")[2].lower())
    return found[1] if found is not None else ""


def shape_of_size(text: str) -> ModelShape | None:
    """`8b`, `llama-3-8b`, or any number of billions (then only the weights are known)."""
    plain = text.strip().lower()
    known = _SHAPES.get(plain) or _SHAPES.get(_BY_SIZE.get(plain, ""))
    if known is not None:
        return msgspec.structs.replace(known, source=f"--model-size {text}, taken as {known.name}")
    found = _SIZE.fullmatch(plain)
    if found is not None and 0 < float(found[1]) < 100_000:
        return ModelShape(name=plain, source=f"--model-size {text}", parameters=float(found[1]) * 1e9)
    return shape_of_name(text)


def shape_of_name(model: str) -> ModelShape | None:
    """The shape of a well-known model by its name; `None` for others, whose `config.json` says it."""
    plain = model.rpartition("/")[2].lower().replace("_", "-").replace("meta-llama", "llama")
    found = next((name for pattern, name in _NAMES if pattern.search(plain)), None)
    return None if found is None else msgspec.structs.replace(_SHAPES[found], source=f"the model's name ({model})")


def shape_of_config(said: Mapping[str, Any], *, source: str) -> ModelShape | None:
    """From a model's `config.json` (Hugging Face's names); `None` where it does not describe a transformer."""
    inner = said.get("text_config")
    said = inner if isinstance(inner, Mapping) and "num_hidden_layers" in inner else said

    def whole(*names: str) -> int:
        return next((value for name in names if isinstance(value := said.get(name), int) and value > 0), 0)

    layers, hidden, heads = (
        whole("num_hidden_layers", "n_layer"),
        whole("hidden_size", "n_embd"),
        whole("num_attention_heads", "n_head"),
    )
    if not (layers and hidden and heads):
        return None
    kv_heads = whole("num_key_value_heads") or heads
    head_size = whole("head_dim") or hidden // heads
    width = whole("intermediate_size", "n_inner") or 4 * hidden
    vocabulary = whole("vocab_size")
    experts = whole("num_local_experts", "num_experts", "n_routed_experts") or 1
    chosen = whole("num_experts_per_tok") or experts
    width_experts = whole("moe_intermediate_size") if experts > 1 else 0
    width = width_experts or width
    attention = 2 * hidden * heads * head_size + 2 * hidden * kv_heads * head_size
    embeddings = vocabulary * hidden * (1 if said.get("tie_word_embeddings") is True else 2)
    return ModelShape(
        name=str(said.get("_name_or_path") or said.get("model_type") or "model"),
        source=source,
        parameters=float(layers * (attention + 3 * hidden * width * experts) + embeddings),
        active=float(layers * (attention + 3 * hidden * width * chosen) + embeddings),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        hidden=hidden,
        inner=width,
        vocabulary=vocabulary,
    )
