"""Run vLLM on the CPU with a model of random weights: `python vllm_server.py FOLDER SIZE [FLAG…]` with vLLM's Python.

SIZE is `small` (0.5 M parameters) or `middle` (39 M: a step takes long enough to be scheduled around). The text is
meaningless; scheduling, prefill, blocks of the cache, streaming and metrics are the engine's own. The model is made
once in FOLDER; PORT in the environment chooses where the engine listens. Prints one JSON line with the address once the
engine serves *this* model, and passes SIGTERM on.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

READY_S = 240.0
WORDS = 1024
SIZES = {
    "small": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4},
    "middle": {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 8},
}
MARKS = ("<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>")
TEMPLATE = (
    "{% for turn in messages %}<|{{ turn['role'] }}|>{{ turn['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_model(folder, size):
    """Weights and a tokenizer that knows bytes and some whole words."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = [*MARKS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += [f"Ġword{number}" for number in range(WORDS - len(words))]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=MARKS[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    shipped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=MARKS[0],
        bos_token=MARKS[1],
        eos_token=MARKS[2],
        additional_special_tokens=list(MARKS[3:]),
        model_max_length=8192,
    )
    shipped.chat_template = TEMPLATE
    shipped.save_pretrained(folder)
    torch.manual_seed(0)
    shape = SIZES[size]
    config = LlamaConfig(
        vocab_size=WORDS,
        num_key_value_heads=shape["num_attention_heads"] // 2,
        max_position_embeddings=8192,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        dtype="bfloat16",
        **shape,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(folder, size, flags):
    model = folder / size
    if not (model / "config.json").exists():
        model.mkdir(parents=True, exist_ok=True)
        make_model(model, size)
    port = int(os.environ.get("PORT") or free_port())
    env = dict(
        os.environ,
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_NO_USAGE_STATS="1",
        DO_NOT_TRACK="1",
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
        VLLM_CACHE_ROOT=str(folder / "cache"),
    )
    # A folder called `triton` or `torch` in the working directory would be imported for the package: run elsewhere.
    command = [str(Path(sys.executable).parent / "vllm"), "serve", str(model), "--host=127.0.0.1", f"--port={port}"]
    command += ["--served-model-name=random", "--enforce-eager", "--block-size=32", *flags]
    with (folder / "vllm.log").open("ab") as log:
        child = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=folder)
    return child, f"http://127.0.0.1:{port}"


def wait_ready(child, url):
    until = time.monotonic() + READY_S
    while time.monotonic() < until and child.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=2) as answer:
                # Another server on the port would answer to /health as well.
                return any(model["id"] == "random" for model in json.load(answer)["data"])
        except (OSError, urllib.error.URLError, ValueError):
            time.sleep(0.2)
    return False


def main():
    folder, size, *flags = sys.argv[1:]
    folder = Path(folder).resolve()
    child, url = start(folder, size, flags)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: child.terminate())
    if not wait_ready(child, url):
        child.kill()
        sys.exit((folder / "vllm.log").read_text(errors="replace")[-4000:])
    print(json.dumps({"ready": True, "url": url, "pid": child.pid}), flush=True)
    child.wait()


if __name__ == "__main__":
    main()
