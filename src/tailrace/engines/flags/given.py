"""Options as facts: what a command line sets, under the names that all other sources of facts use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from tailrace.engines.facts import Fact, FactValue, plain_value
from tailrace.engines.flags.command_line import CommandLine, Given, parse_words, split_words
from tailrace.engines.flags.option import OptionTable, Takes, option_key
from tailrace.engines.flags.tables import option_table

COMMAND: Final = "command line"

_SECRET: Final = re.compile(r"key|token(?!s|iz)|secret|password|credential", re.IGNORECASE)
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG])")
_SCALE: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_SWITCH_WORDS: Final = frozenset({"auto", "true", "false", "on", "off", "yes", "no", "0", "1", "none", "null"})

# Option (as a variable) -> the key of `engines.facts`; what is not here keeps its own name.
FACT_KEYS: Final[Mapping[str, Mapping[str, str]]] = {
    "vllm": {
        "kv_cache_dtype": "kv_dtype",
        "tensor_parallel_size": "tensor_parallel",
        "pipeline_parallel_size": "pipeline_parallel",
        "data_parallel_size": "data_parallel",
        "enable_prefix_caching": "prefix_caching",
        "enable_chunked_prefill": "chunked_prefill",
        "max_num_queued_reqs": "max_queued",
        "num_gpu_blocks_override": "num_gpu_blocks",
    },
    "sglang": {
        "model_path": "model",
        "context_length": "max_model_len",
        "kv_cache_dtype": "kv_dtype",
        "max_running_requests": "max_num_seqs",
        "max_queued_requests": "max_queued",
        "max_total_tokens": "kv_tokens",
        "page_size": "block_size",
        "schedule_policy": "scheduling_policy",
        "mem_fraction_static": "gpu_memory_utilization",
        "tensor_parallel_size": "tensor_parallel",
        "pipeline_parallel_size": "pipeline_parallel",
        "data_parallel_size": "data_parallel",
    },
    "llamacpp": {
        "ctx_size": "ctx_size",
        "batch_size": "n_batch",
        "ubatch_size": "n_ubatch",
        "parallel": "slots",
        "cache_type_k": "kv_dtype",
    },
    "tgi": {
        "model_id": "model",
        "num_shard": "tensor_parallel",
        "kv_cache_dtype": "kv_dtype",
        "quantize": "quantization",
        "max_input_tokens": "max_input_len",
        "max_input_length": "max_input_len",
        "max_total_tokens": "max_model_len",
        "max_batch_total_tokens": "kv_tokens",
        "max_batch_prefill_tokens": "max_num_batched_tokens",
        "cuda_memory_fraction": "gpu_memory_utilization",
    },
}


def read_command(text: str, *, helped: OptionTable | None = None, engine: str = "") -> CommandLine:
    """Read a command line; `helped` is the engine's own `--help`, `engine` what it is where the line does not say."""
    return read_words(split_words(text), helped=helped, engine=engine)


def read_words(
    words: Iterable[str], *, helped: OptionTable | None = None, engine: str = "", image: str = ""
) -> CommandLine:
    """The same for words that are split already."""
    listed = list(words)
    first = parse_words(listed, image=image)
    table = helped or option_table(first.engine or engine)
    return first if table is None else parse_words(listed, table=table, image=image)


def is_secret(name: str) -> bool:
    """Whether an option's or a variable's value is nobody's business."""
    return _SECRET.search(option_key(name)) is not None and "path" not in name


def fact_key(engine: str, key: str) -> str:
    """Our name for an engine's option."""
    return FACT_KEYS.get(engine, {}).get(key, key)


def size(text: str) -> FactValue | None:
    """A number as people write it: `8k` is 8,000 and `8K` 8,192, as vLLM reads them; anything else as it is."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return plain_value(text)
    return int(float(found[1]) * _SCALE[found[2]])


def stray_value(given: Given) -> str | None:
    """The word that was meant as the value of an option which takes none: `auto` behind `--enable-chunked-prefill`."""
    word = given.value if given.stray is None else given.stray
    return word if word is not None and word.lower() in _SWITCH_WORDS else None


def model_of(command: CommandLine) -> str:
    """The model that a command line names; empty where it names none."""
    given = command.last("--model", "--model-path", "--model-id", "-m")
    if given is not None and given.value:
        return given.value
    if command.words:
        return command.words[0]
    # A switch may stand right before the model: `vllm serve --enforce-eager MODEL`.
    loose = [one.stray for one in command.options if one.stray is not None and stray_value(one) is None]
    return loose[0] if len(loose) == 1 else ""


_LLAMACPP_ENVIRONMENT: Final = {
    "LLAMA_ARG_CTX_SIZE": "ctx_size",
    "LLAMA_ARG_N_PARALLEL": "slots",
    "LLAMA_ARG_BATCH": "n_batch",
    "LLAMA_ARG_UBATCH": "n_ubatch",
    "LLAMA_ARG_THREADS": "threads",
    "LLAMA_ARG_MODEL": "model",
    "LLAMA_ARG_KV_UNIFIED": "kv_unified",
    "LLAMA_ARG_CONT_BATCHING": "cont_batching",
    "LLAMA_ARG_ENDPOINT_METRICS": "metrics",
}


def _environment_facts(command: CommandLine, table: OptionTable | None, engine: str) -> dict[str, Fact]:
    """Options given as variables: llama.cpp's `LLAMA_ARG_…`, and TGI's, which are the options in capitals."""
    out: dict[str, Fact] = {}
    for name, text in command.environment.items():
        key = _LLAMACPP_ENVIRONMENT.get(name, "") if engine == "llamacpp" else ""
        if engine == "tgi" and table is not None and f"--{name.lower().replace('_', '-')}" in table:
            key = fact_key("tgi", name.lower())
        value = plain_value(text) if key and not is_secret(name) else None
        if value is not None:
            out[key] = Fact(value, f"environment: {name}")
    return out


def command_facts(
    command: CommandLine, table: OptionTable | None, *, engine: str = "", known_only: bool = False
) -> dict[str, Fact]:
    """What the options set. Values that the engine would refuse give no fact; secrets never do.

    `known_only`: the table is this engine's own, so what is not in it is refused too.
    """
    engine = command.engine or engine
    out = _environment_facts(command, table, engine)
    for given in command.options:
        found = table.find(given.name) if table is not None else None
        name = given.name if found is None else found.option.name
        if is_secret(name) or ("." in given.name and found is not None) or (known_only and found is None):
            continue
        value = _value(given, None if found is None else found.option.takes, negated=bool(found and found.negated))
        if value is not None:
            out[fact_key(engine, option_key(name))] = Fact(value, f"{COMMAND}: {given.name}")
    if command.version and any(letter.isdigit() for letter in command.version):
        out["version"] = Fact(command.version.removeprefix("v"), f"{COMMAND}: the image's tag")
    model = model_of(command)
    if model:
        out["model"] = Fact(model, COMMAND)
    return out


def _value(given: Given, takes: Takes | None, *, negated: bool) -> FactValue | None:
    if negated:
        return False
    if takes in {Takes.NOTHING, Takes.SWITCH}:
        # With a value, argparse refuses the whole line: nothing is in force.
        return None if given.value is not None or stray_value(given) is not None else True
    if given.value is None:
        return True if takes is None or takes is Takes.MAYBE else None
    return size(given.value)
