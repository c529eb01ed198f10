"""Which options an engine has: the whole list of `vllm serve` 0.32.0, and of the others those that this tool reads.

A table that is not complete knows what an option takes and means; it cannot say that a name does not exist. The
engine's own `--help` can (`help_text`).
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from tailrace.engines.flags.option import Option, OptionTable, Takes
from tailrace.engines.flags.vllm_options import VLLM_0_32_0

_LINE: Final = re.compile(
    r"(?P<name>[\w-]*\w)(?P<takes>[-!=+?])(?P<default>[^ {]*)(?: \{(?P<choices>.*?)\})?(?P<also>( -\S+)*)$"
)
_TAKES: Final = {"-": Takes.NOTHING, "!": Takes.SWITCH, "=": Takes.VALUE, "+": Takes.VALUES, "?": Takes.MAYBE}

# `--help` of SGLang 0.5.23, read in its source: the options of the scheduler, the memory and the metrics.
_SGLANG: Final = """
model-path= --model
served-model-name=
context-length=
dtype=auto
quantization=
kv-cache-dtype=auto
mem-fraction-static=
max-running-requests=
max-queued-requests=
max-total-tokens=
chunked-prefill-size=
max-prefill-tokens=16384
enable-mixed-chunk-
schedule-policy=fcfs {lpm,random,fcfs,dfs-weight,lof,priority,routing-key,hrrn,shortest-prefill-first}
enable-priority-scheduling-
abort-on-priority-when-disabled-
schedule-low-priority-values-first-
priority-scheduling-preemption-threshold=10
retraction-policy=
schedule-conservativeness=1.0
page-size=
stream-interval=1
num-continuous-decode-steps=1
allow-auto-truncate-
tensor-parallel-size=1 --tp-size --tp
pipeline-parallel-size=1 --pp-size --pp
data-parallel-size=1 --dp-size --dp
disable-radix-cache-
disable-cuda-graph-
disable-overlap-schedule-
enable-metrics-
enable-trace-
otlp-traces-endpoint=localhost:4317
export-metrics-to-file-
export-metrics-to-file-dir=
enable-torch-compile-
trust-remote-code-
log-requests-
skip-server-warmup-
host=127.0.0.1
port=30000
tokenizer-worker-num=1
attention-backend=
device=
"""

# The README of llama.cpp's server: threads, context, batches, slots, cache, endpoints.
_LLAMACPP: Final = """
threads=-1 -t
threads-batch= -tb
threads-http=-1
poll=50
ctx-size=0 -c
predict=-1 -n --n-predict
batch-size=2048 -b
ubatch-size=512 -ub
parallel=-1 -np
cont-batching!yes -cb -nocb
flash-attn=auto -fa
cache-type-k=f16 -ctk
cache-type-v=f16 -ctv
gpu-layers=auto -ngl --n-gpu-layers
split-mode=layer -sm
model= -m
hf-repo= -hf -hfr
alias= -a
host=127.0.0.1
port=
timeout=3600 -to
kv-unified! -kvu -no-kvu
kv-unified-per-slot=
cache-prompt!yes
cache-reuse=0
cache-ram=8192 -cram
context-shift!
metrics-
slots!yes
props-
api-key=
warmup!yes
jinja!yes
sse-ping-interval=30
load-mode=auto -lm
numa=
prio=0
"""

# The launcher of Text Generation Inference, from its reference page.
_TGI: Final = """
model-id=bigscience/bloom-560m
revision=
validation-workers=2
sharded=
num-shard=
quantize=
dtype=
kv-cache-dtype=
max-concurrent-requests=128
max-best-of=2
max-input-tokens=
max-input-length=
max-total-tokens=
waiting-served-ratio=0.3
max-batch-prefill-tokens=
max-batch-total-tokens=
max-waiting-tokens=20
max-batch-size=
cuda-graphs=
cuda-memory-fraction=1.0
hostname=0.0.0.0
port=3000 -p
json-output-
otlp-endpoint=
speculate=
"""


def _parse(text: str) -> list[Option]:
    out = []
    for line in text.strip().splitlines():
        found = _LINE.match(line)
        if found is None:
            raise ValueError(line)  # a slip in the tables above; every test would see it
        takes = _TAKES[found["takes"]]
        choices = tuple(found["choices"].split(",")) if found["choices"] else ()
        out.append(Option("--" + found["name"], takes, found["default"] or None, choices, tuple(found["also"].split())))
    return out


@cache
def option_table(engine: str) -> OptionTable | None:
    """The options that are known of an engine; `None` where none are (Triton's are in its models' files)."""
    if engine in {"vllm", "simulated"}:
        return OptionTable(
            "vllm",
            _parse(VLLM_0_32_0),
            version="0.32.0",
            source="`vllm serve --help=all` of 0.32.0",
            complete=True,
            abbreviations=True,
            underscores=True,
        )
    if engine == "sglang":
        return OptionTable("sglang", _parse(_SGLANG), version="0.5.23", source="SGLang 0.5.23", abbreviations=True)
    if engine == "llamacpp":
        return OptionTable("llamacpp", _parse(_LLAMACPP), source="llama.cpp's list of options")
    if engine == "tgi":
        return OptionTable("tgi", _parse(_TGI), source="TGI's launcher reference")
    return None
