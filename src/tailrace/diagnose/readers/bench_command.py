"""The command line of a load test, as people paste it: what was offered, how it was paced, how long prompts were."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from tailrace.diagnose.observed import Place, Setting
from tailrace.diagnose.observed.vocabulary import quantity_named
from tailrace.diagnose.readers.grids import Line

__all__ = ["commands_in", "flags_in", "is_bench_command"]

_SCRIPT: Final = "script"
"""A load test of one's own: its options are read, how it paces itself is not known."""
_LOADER: Final = "load tool"
_TOOLS: Final = (
    ("vllm bench", re.compile(r"\bvllm\s+bench\s+\w+|\bbenchmark_serving\w*(?:\.py)?\b")),
    ("sglang bench", re.compile(r"\bsglang\.bench_(?:serving|one_batch\w*|offline\w*)|\bbench_serving\.py\b")),
    ("guidellm", re.compile(r"\bguidellm\s+(?:benchmark|run)\b")),
    ("genai-perf", re.compile(r"\bgenai-perf\b(?=.*\s-)")),
    ("aiperf", re.compile(r"\baiperf\s+\w+")),
    ("perf_analyzer", re.compile(r"\bperf_analyzer\b(?=.*\s-)")),
    ("llmperf", re.compile(r"\btoken_benchmark_ray\.py\b")),
    ("genai-bench", re.compile(r"\bgenai-bench\s+benchmark\b")),
    ("tailrace bench", re.compile(r"\btailrace\s+bench\b")),
    ("evalscope perf", re.compile(r"\bevalscope\s+perf\b(?=.*\s-)")),
    (
        _LOADER,
        re.compile(
            r"^\W{0,4}(?:\S{1,200}/)?(?:hey|oha|wrk2?|ab|locust|k6\s+run|vegeta|autocannon)\s+(?:\S+\s+){0,20}?--?\w"
        ),
    ),
    (
        _SCRIPT,
        re.compile(
            r"^\W{0,4}(?:\w+=\S*\s+){0,9}(?:\S{1,200}/)?python[\d.]*\s+(?:-m\s+)?"
            r"\S{0,200}(?:bench|load|perf|stress|stream|client|probe)\S{0,200}\s+(?:\S+\s+){0,20}?--?\w"
        ),
    ),
)
_ANY: Final = re.compile(
    r"bench|guidellm|genai-perf|aiperf|perf_analyzer|evalscope|python|\b(?:hey|oha|wrk2?|ab|locust|k6|vegeta|autocannon)\s",
    re.IGNORECASE,
)
"""A word of each of them: asked of every line before the others are."""
_ONE_VALUE: Final = {
    # their flag -> the name that rules ask for
    "request_rate": "request_rate", "rate": "request_rate", "qps": "request_rate",
    "max_concurrency": "max_concurrency", "concurrency": "max_concurrency",
    "num_concurrent_requests": "max_concurrency", "parallel": "max_concurrency", "users": "max_concurrency",
    "vus": "max_concurrency", "connections": "max_concurrency", "clients": "max_concurrency",
    "num_prompts": "num_prompts", "num_requests": "num_prompts", "max_requests": "num_prompts",
    "request_count": "num_prompts", "max_num_completed_requests": "num_prompts", "requests": "num_prompts",
    "number": "num_prompts",
    "random_input_len": "prompt_tokens", "random_input": "prompt_tokens", "input_len": "prompt_tokens",
    "synthetic_input_tokens_mean": "prompt_tokens", "mean_input_tokens": "prompt_tokens", "isl": "prompt_tokens",
    "sonnet_input_len": "prompt_tokens", "prompt_tokens_mean": "prompt_tokens", "prompt_tokens": "prompt_tokens",
    "random_output_len": "output_tokens", "random_output": "output_tokens", "output_len": "output_tokens",
    "output_tokens_mean": "output_tokens", "mean_output_tokens": "output_tokens", "osl": "output_tokens",
    "sonnet_output_len": "output_tokens", "sharegpt_output_len": "output_tokens", "output_tokens": "output_tokens",
}  # fmt: skip
_SHORT: Final = {"-c": "concurrency", "-n": "num_requests", "-r": "request_rate"}
_LONGEST: Final = 20_000
_NAMESPACE: Final = re.compile(r"^\W*(?:Namespace|\w*Args|\w*Arguments)\((\w+=.*)\)\s*$")
_ARGUMENT: Final = re.compile(r"(\w+)=(?:'([^']*)'|([^,'()\[\]{}]*))(?=,|$)")
_PAIR: Final = re.compile(r"(\w+)=(\d+)")


def is_bench_command(text: str) -> bool:
    """Whether a line is, or begins, the command of a load test that is known."""
    return len(text) <= _LONGEST and _tool(text) != ""


def _tool(text: str) -> str:
    if _ANY.search(text) is None:
        return ""
    found = next((name for name, mark in _TOOLS if mark.search(text)), "")
    # A sentence that mentions the tool is no command of it.
    return found if found and re.search(r"\s-{1,2}[a-zA-Z]|\\\s*$|\s(?:serve|run)\s*$", text) else ""


def commands_in(lines: Sequence[Line], source: str) -> tuple[list[Setting], list[Line]]:
    """(what the commands in these lines set, the lines that are none). Several are kept apart by `scope`."""
    found = list(_commands(lines))
    settings: list[Setting] = []
    taken: set[int] = set()
    for number, (line, text, places) in enumerate(found, start=1):
        taken.update(places)
        settings += _settings(text, Place(source, line), "" if len(found) == 1 else f"command {number}")
    left = []
    for at, text in lines:
        if at in taken:
            continue
        space = _NAMESPACE.search(text) if len(text) <= _LONGEST else None
        if space is None:
            left.append((at, text))
            continue
        known = {one.name for one in settings}
        settings += [
            Setting(name=name, value=value, place=Place(source, at))
            for name, value in _namespace(space[1])
            if name not in known
        ]
    return settings, left


_FLAG: Final = re.compile(r"(?<![\w-])--([a-zA-Z][\w-]{2,40})(?:=|\s+)([\w.:/-]+)")
_LIMITS: Final = frozenset(
    {
        "max_num_seqs", "max_num_batched_tokens", "max_model_len", "tensor_parallel", "data_parallel",
        "kv_capacity_tokens",
    }
)  # fmt: skip


def flags_in(lines: Sequence[Line], source: str) -> list[Setting]:
    """Options that a sentence or a caption names with their value: ``sglang, `--max-running-requests 64` at 20 req/s``.
    A number that somebody typed for a program is configuration, wherever it stands. Two values of one option are a
    comparison, and no setting; cells of a table are arms.
    """
    found: dict[str, list[tuple[float, int]]] = {}
    for at, text in lines:
        if len(text) > _LONGEST or text.lstrip().startswith("|") or "--" not in text:
            continue
        for flag, given in _FLAG.findall(text.replace("`", " ")):
            name = flag.replace("-", "_").lower()
            known = quantity_named(name)
            ours = known.name if known is not None and known.name in _LIMITS else _ONE_VALUE.get(name, "")
            value = _value(given)
            if ours and isinstance(value, (int, float)):
                found.setdefault(ours, []).append((float(value), at))
    return [
        Setting(name=name, value=values[0][0], place=Place(source, values[0][1]))
        for name, values in found.items()
        if len({value for value, _ in values}) == 1
    ]


def _namespace(text: str) -> Iterator[tuple[str, float | str | bool]]:
    """What vLLM's and SGLang's benchmarks print first: `Namespace(backend='vllm', request_rate=10.0, …)`."""
    for name, quoted, bare in _ARGUMENT.findall(text):
        if bare in {"None", ""} and not quoted:
            continue
        value = _value(quoted or bare)
        yield name, {"True": True, "False": False}.get(bare, value)
        if name in _ONE_VALUE and _ONE_VALUE[name] != name:
            yield _ONE_VALUE[name], value


def _commands(lines: Sequence[Line]) -> Iterator[tuple[int, str, list[int]]]:
    """(first line, the command on one line, the lines that it took)."""
    at = 0
    while at < len(lines):
        line, text = lines[at]
        if not (is_bench_command(text) or (text.rstrip().endswith("\\") and len(text) <= _LONGEST)):
            at += 1
            continue
        parts, last = [text], at
        while parts[-1].rstrip().endswith("\\") and last + 1 < len(lines) and last - at < 200:
            last += 1
            parts.append(lines[last][1])
        # Some paste the options on lines of their own, without a backslash.
        while last + 1 < len(lines) and re.match(r"^\s+--?[A-Za-z]", lines[last + 1][1]) and last - at < 200:
            last += 1
            parts.append(lines[last][1])
        whole = " ".join(re.sub(r"\\\s*$", "", part).strip() for part in parts)
        if _tool(whole):
            yield line, whole, [number for number, _ in lines[at : last + 1]]
            at = last + 1
        else:
            at += 1


def _settings(text: str, place: Place, scope: str) -> list[Setting]:
    tool = _tool(text)
    made: dict[str, float | str | bool] = {"tool": tool}
    for name, value in _options(text):
        made.setdefault(name, value)
        wanted = _ONE_VALUE.get(name)
        if wanted is not None:
            made.setdefault(wanted, value)
        if name in {"data", "dataset_args", "processor_args"} and isinstance(value, str):
            for key, number in _PAIR.findall(value):
                made.setdefault(_ONE_VALUE.get(key) or key, float(number))
    if tool not in (_SCRIPT, _LOADER):
        made.setdefault("loop", _loop(made))
    return [Setting(name=name, value=value, scope=scope, place=place) for name, value in made.items()]


def _loop(made: dict[str, float | str | bool]) -> str:
    """`open`, `closed` or `all at once`: how the next request comes about."""
    rate, limit = made.get("request_rate"), made.get("max_concurrency")
    if isinstance(rate, (int, float)) and rate > 0:
        return "closed above the limit" if limit is not None else "open"
    if limit is not None or str(made.get("rate_type", "")) in {"concurrent", "synchronous", "throughput"}:
        return "closed"
    return "all at once"


def _options(text: str) -> Iterator[tuple[str, float | str | bool]]:
    try:
        words = shlex.split(text.removeprefix("$ "), comments=False)
    except ValueError:
        words = text.split()
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("-") or word in {"-", "--", "-m"} or _is_number(word):
            continue
        name, given, value = word.partition("=")
        name = _SHORT.get(name, name.lstrip("-").replace("-", "_").lower())
        if not given:
            following = words[at] if at < len(words) else "-"
            if following.startswith("-") and not _is_number(following):
                yield name, True
                continue
            value, at = following, at + 1
        # In a sentence a comma or a full stop follows the value: `--max-concurrency 64, --request-rate inf.`
        known = _value(value.rstrip(",;.") or value)
        if name in _ONE_VALUE and isinstance(known, str) and known != "inf" and not re.search(r"\d", known):
            continue  # `only --random-output-len changed`: a word of the sentence, and no value
        yield name, known


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _value(text: str) -> float | str:
    plain = text.strip().replace("_", "") if re.fullmatch(r"[\d_.,]+", text.strip()) else text.strip()
    if plain.lower() in {"inf", "infinity"}:
        return "inf"
    if re.fullmatch(r"[+-]?\d{1,15}", plain):
        return int(plain)
    return float(plain) if _is_number(plain) and plain.lower() != "nan" else text
