"""An engine's log read for what it was started with: one pass, line by line, in bounded memory.

Lines may carry anything in front (a collector's stamp, `(APIServer pid=7)`, a container's name) and colours inside, so
patterns are searched for, never expected at a line's start. What repeats (the line with load and cache usage) is kept
as its peaks only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from tailrace.engines.facts import Fact, plain_value
from tailrace.engines.flags.given import fact_key, is_secret

LONGEST_LINE: Final = 128 * 1024
"""Of a line only this much is looked at; the longest real one (all arguments of an engine) has some 10 KB."""
_MOST_PROBLEMS: Final = 20
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PAIR: Final = re.compile(
    r"""['"]?(?P<key>[a-z_][a-z0-9_]*)['"]?\s*[=:]\s*
    (?P<value>'[^']{0,2000}'|"[^"]{0,2000}"|\[[^\]]{0,2000}\]|Some\([^()]{0,2000}\)|[^\s,(){}\[\]]{1,2000})
    (?=\s*[,)}]|\s*$)""",
    re.VERBOSE,
)


class Problem(msgspec.Struct, frozen=True):
    """A line in which the engine says that something is wrong."""

    code: str
    line: int
    text: str


class LoadSeen(msgspec.Struct):
    """The peaks of the lines in which the engine tells its load."""

    lines: int = 0
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    """Share of the KV cache (0..1)."""
    waiting_with_room: int = 0
    """Lines with requests waiting while less than 80 % of the KV cache was used."""
    preemptions: int = 0

    def see(self, running: int, waiting: int, kv_usage: float) -> None:
        """One more line."""
        self.lines += 1
        self.running = max(self.running, running)
        self.waiting = max(self.waiting, waiting)
        self.kv_usage = max(self.kv_usage, kv_usage)
        self.waiting_with_room += waiting > 0 and kv_usage < 0.8


_PROBLEMS: Final = (
    (
        "LOG_OPTION_REFUSED",
        re.compile(r"error: (unrecognized arguments|argument |ambiguous option|unexpected argument)"),
    ),
    ("LOG_OPTION_REFUSED", re.compile(r"error: (?:invalid argument|unknown argument)")),
    ("LOG_OUT_OF_MEMORY", re.compile(r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|cudaMalloc failed")),
    (
        "LOG_KV_TOO_SMALL",
        re.compile(r"To serve at least one request with the model's max seq len|No available memory for the cache"),
    ),
    ("LOG_KV_TOO_SMALL", re.compile(r"Not enough memory\. Please try to increase --mem-fraction-static")),
    ("LOG_ENGINE_DIED", re.compile(r"EngineDeadError|Engine core initialization failed|EngineCore failed to start")),
    ("LOG_JIT", re.compile(r"JIT compilation during inference|DeepGEMM JIT code generation")),
)
_VLLM_STATS: Final = re.compile(
    r"Running: (\d+) reqs,(?: Swapped: \d+ reqs,)? (?:Waiting|Pending): (\d+) reqs.{0,200}?(?:GPU|CPU) KV cache usage: "
    r"([\d.]+)%"
)
_SGLANG_STATS: Final = re.compile(r"#running-req: (\d+),.{0,300}?token usage: ([\d.]+).{0,300}?#queue-req: (\d+)")
_PREEMPTED: Final = re.compile(r"is preempted by PreemptionMode|Retract requests|Preemptions: (\d+)")

# (pattern, engine that says so, key) of lines with one value. Groups: the value.
_SINGLE: Final = tuple(
    (re.compile(pattern), engine, key)
    for pattern, engine, key in (
        (r"Initializing an? (?:V\d )?LLM engine \(v([^)\s]+)\)", "vllm", "version"),
        (r"vLLM (?:API )?server version:? v?(\d[\w.+]*)", "vllm", "version"),
        (r"Using max model len (\d+)", "vllm", "max_model_len"),
        (r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)", "vllm", "max_num_batched_tokens"),
        (r"Defaulting max_num_batched_tokens to (\d+)", "vllm", "max_num_batched_tokens"),
        (r"Defaulting max_num_seqs to (\d+)", "vllm", "max_num_seqs"),
        (r"(?:GPU|CPU) KV cache size: ([\d,]+) tokens", "vllm", "kv_tokens"),
        (r"(GPU|CPU) KV cache size", "vllm", "device"),
        (r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x", "vllm", "kv_max_concurrency"),
        (r"# (?:GPU|cuda|CUDA) blocks: (\d+)", "vllm", "num_gpu_blocks"),
        (r"Resolved architecture: (\w+)", "vllm", "architecture"),
        (r"Model loading took ([\d.]+) GiB", "vllm", "weights_gib"),
        (r"Available KV cache memory: ([\d.]+) GiB", "vllm", "kv_gib"),
        (r"max_total_num_tokens=(\d+)", "sglang", "kv_tokens"),
        (r"KV Cache is allocated\. #tokens: (\d+)", "sglang", "kv_tokens"),
        (r"max_total_num_tokens=.{0,400}?\bchunked_prefill_size=(-?\d+)", "sglang", "chunked_prefill_size"),
        (r"max_total_num_tokens=.{0,400}?\bmax_prefill_tokens=(\d+)", "sglang", "max_prefill_tokens"),
        (r"max_total_num_tokens=.{0,400}?\bmax_running_requests=(\d+)", "sglang", "max_num_seqs"),
        (r"max_total_num_tokens=.{0,400}?\bcontext_len=(\d+)", "sglang", "max_model_len"),
        (r"Load weight end\..{0,200}?\bdtype=(?:torch\.)?(\w+)", "sglang", "dtype"),
        (r"\bn_ctx(?:_seq|_per_seq)?(?: \(per seq\))?\s*= (\d+)", "llamacpp", "ctx_size"),
        (r"\bn_batch\s*= (\d+)", "llamacpp", "n_batch"),
        (r"\bn_ubatch\s*= (\d+)", "llamacpp", "n_ubatch"),
        (r"\bn_(?:seq_max|parallel|slots)\s*= (\d+)", "llamacpp", "slots"),
        (r"n_ctx_slot = (\d+)|slot.{0,100}?n_ctx = (\d+)", "llamacpp", "slot_ctx"),
        (r"system_info: n_threads = (\d+)", "llamacpp", "threads"),
        (r"threadpool init, n_threads = (\d+)", "llamacpp", "threads"),
        (r"\bkv_unified = '(true|false)'", "llamacpp", "kv_unified"),
        (r"load_model: loading model '([^']+)'", "llamacpp", "model"),
        (r"\bbuild_info: (\S+)", "llamacpp", "version"),
        (r"system_info: n_threads = .{0,60}?/ (\d+)", "llamacpp", "cores"),
        (r"\bbuild(?:_info)?: ?(b?\d+[-( ][0-9a-f]{6,})", "llamacpp", "version"),
        (r"print_info: file type\s*= (\S+)", "llamacpp", "quantization"),
        (r"print_info: general\.name\s*= (.+?)\s*$", "llamacpp", "model"),
        (r"print_info: n_layer\s*= (\d+)", "llamacpp", "layers"),
        (r"text-generation-(?:launcher|router).{0,200}?[Vv]ersion:? ?v?(\d+\.\d+\.\d+)", "tgi", "version"),
    )
)
_CTX_TOTAL: Final = re.compile(r"\bn_ctx\s*= ")

# (where a list of arguments begins, engine, whether the list holds every argument)
_LISTS: Final = (
    (re.compile(r"non-default args: (\{.*)"), "vllm"),
    (re.compile(r"\bargs: Namespace\((.*)"), "vllm"),
    (re.compile(r"LLM engine \(v[^)]*\) with config: (.*)"), "vllm-config"),
    (re.compile(r"server_args=ServerArgs\((.*)"), "sglang"),
    (re.compile(r"\bArgs \{ (.*)"), "tgi"),
)
_CONFIG_KEYS: Final = {
    "model": "model",
    "dtype": "dtype",
    "max_seq_len": "max_model_len",
    "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel",
    "data_parallel_size": "data_parallel",
    "quantization": "quantization",
    "enforce_eager": "enforce_eager",
    "kv_cache_dtype": "kv_dtype",
    "device_config": "device",
    "enable_prefix_caching": "prefix_caching",
    "enable_chunked_prefill": "chunked_prefill",
    "chunked_prefill_enabled": "chunked_prefill",
}
_DEVICES: Final = {"GPU": "cuda", "CPU": "cpu"}
_NOT_SAID: Final = frozenset({"None", "auto", "", "[]", "{}"})


_WORTH_A_LOOK: Final = re.compile(
    r" reqs|#running-req|reempt|Retract|args: |config: |server_args|Args \{|LLM engine|server version|model len|"
    r"max_num_|max_total_num|KV [Cc]ache|concurrency for| blocks: |architecture|loading took|Load weight|"
    r"n_ctx|n_batch|n_ubatch|n_seq_max|n_parallel|n_slots|n_threads|build|print_info|kv_unified|loading model|"
    r"ersion|error: |memory|Memory|at least one request|EngineDead|ngine core|EngineCore failed|JIT"
)
_RECENT: Final = 40
"""Lines before the list of arguments in which a version still belongs to the same start."""


class StartLog:
    """Reads lines as they come; ask for `facts` at the end."""

    def __init__(self, name: str) -> None:
        """`name` stands in the sources of facts: a file's name."""
        self.name = name
        self.engine = ""
        self.facts: dict[str, Fact] = {}
        self.load = LoadSeen()
        self.problems: list[Problem] = []
        self.lines = 0
        self.understood = 0
        self.cut = 0
        """Lines of which only the beginning was read."""
        self._started = ""
        self._version_line = 0

    def feed(self, line: str) -> None:
        """One line, with or without its end."""
        self.lines += 1
        if len(line) > LONGEST_LINE:
            line = line[:LONGEST_LINE]
            self.cut += 1
        if "\x1b" in line:
            line = _COLOUR.sub("", line)
        # Lines of requests have none of these words, and they are most of a log.
        if _WORTH_A_LOOK.search(line) is None:
            return
        if self._stats(line) or self._listed(line) or self._single(line):
            self.understood += 1
        self._problem(line)

    def _set(self, key: str, text: str, *, strong: bool = True) -> None:
        if key == "device" and text in _DEVICES:
            text = _DEVICES[text]
        value = plain_value(text.replace(",", "") if re.fullmatch(r"[\d,]+", text) else text)
        if value is None or (not strong and key in self.facts):
            return
        if isinstance(value, str):
            value = value.removeprefix("torch.")
        self.facts[key] = Fact(value, f"{self.name}:{self.lines}")
        if key == "version":
            self._version_line = self.lines

    def _recognise(self, engine: str) -> None:
        self.engine = self.engine or engine

    def _stats(self, line: str) -> bool:
        found = _VLLM_STATS.search(line) if " reqs" in line else None
        if found is not None:
            self._recognise("vllm")
            self.load.see(int(found[1]), int(found[2]), float(found[3]) / 100.0)
        elif "#running-req" in line and (found := _SGLANG_STATS.search(line)) is not None:
            self._recognise("sglang")
            self.load.see(int(found[1]), int(found[3]), float(found[2]))
        if "reempt" in line or "Retract" in line:
            seen = _PREEMPTED.search(line)
            if seen is not None:
                self.load.preemptions += int(seen[1] or 1)
                return True
        return found is not None

    def _listed(self, line: str) -> bool:
        for pattern, kind in _LISTS:
            found = pattern.search(line)
            if found is None:
                continue
            engine = kind.partition("-")[0]
            self._recognise(engine)
            if engine == kind:
                self._start(found[1])
            if kind == "vllm-config":
                version = re.search(r"\(v([^)\s]+)\)", line)
                if version is not None:
                    self._set("version", version[1])
            for pair in _PAIR.finditer(found[1]):
                self._pair(kind, pair["key"], pair["value"])
            return True
        return False

    def _start(self, arguments: str) -> None:
        """Other arguments than before are another start: what was said of the one before no longer holds."""
        if self._started and arguments != self._started:
            fresh = self.lines - self._version_line <= _RECENT
            self.facts = {key: fact for key, fact in self.facts.items() if key == "version" and fresh}
        self._started = arguments

    def _pair(self, kind: str, key: str, raw: str) -> None:
        text = raw.strip("'\"")
        if text.startswith("Some("):
            text = text[5:-1].strip("'\"")
        if text in _NOT_SAID or raw.startswith("[") or is_secret(key):
            return
        if kind == "vllm-config":
            ours = _CONFIG_KEYS.get(key)
            if ours is not None:
                self._set(ours, text)
        elif key not in {"model_tag", "subparser", "dispatch_function"}:
            self._set(fact_key(kind, key), text, strong=False)

    def _single(self, line: str) -> bool:
        hit = False
        for pattern, engine, key in _SINGLE:
            if self.engine and engine != self.engine:
                continue
            found = pattern.search(line)
            if found is None:
                continue
            self._recognise(engine)
            name = "slot_ctx" if key == "ctx_size" and not _CTX_TOTAL.search(line) else key
            self._set(name, next(group for group in found.groups() if group is not None))
            hit = True
        return hit

    def _problem(self, line: str) -> None:
        if len(self.problems) >= _MOST_PROBLEMS:
            return
        for code, pattern in _PROBLEMS:
            found = pattern.search(line)
            if found is not None:
                text = line[max(found.start() - 60, 0) : found.end() + 160].strip()
                self.problems.append(Problem(code, self.lines, text))
                return


def feed_bytes(log: StartLog, chunks: Callable[[], bytes]) -> None:
    """Feed a stream of bytes: `chunks` gives the next piece, empty at the end. Memory is one piece and one line."""
    rest = b""
    overlong = False
    while piece := chunks():
        rest += piece
        *whole, rest = rest.split(b"\n")
        for line in whole:
            if overlong:
                overlong = False  # the end of a line whose beginning was read already
            else:
                log.feed(line.decode("utf-8", "replace"))
        if len(rest) > LONGEST_LINE:
            if not overlong:
                log.feed(rest[: LONGEST_LINE + 1].decode("utf-8", "replace"))
            overlong, rest = True, b""
    if rest and not overlong:
        log.feed(rest.decode("utf-8", "replace"))
