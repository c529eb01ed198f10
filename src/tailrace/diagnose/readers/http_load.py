"""What generators of plain HTTP load print: hey, oha, wrk, ab, k6, vegeta, and LLMPerf's blocks of statistics.

They know requests, not tokens: durations are end to end, k6's `http_req_waiting` is the time to the first byte. Their
own words for a percentile differ (`90% in 6.2 secs`, `p(90)=702ms`, `90% 5.98s`), the arm is the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.diagnose.observed import Arm, Observed, Place, Quoted, Understood
from tailrace.diagnose.observed.vocabulary import QUANTITIES, in_unit
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.heading import statistic
from tailrace.diagnose.readers.tables import numbered_lines
from tailrace.diagnose.readers.units import unit_of

__all__ = ["HTTP_LOAD"]

_MARKS: Final = (
    # All of these words of the beginning: a regular expression over a whole head costs its square on hostile text.
    ("hey", ("Requests/sec:", "Slowest:")),
    ("hey", ("Requests/sec:", "Status code distribution:")),
    ("wrk", ("Running ", " test @ http")),
    ("wrk", ("Thread Stats ", "+/- Stdev")),
    ("ab", ("Concurrency Level:", "Time per request:")),
    ("ab", ("Concurrency Level:", "Requests per second:")),
    ("k6", ("http_req_duration..", "avg=")),
    ("vegeta", ("Latencies ", "[min, mean,")),
    ("llmperf", ("Results for token benchmark for ",)),
    ("llmperf", ("inter_token_latency_s\n", "end_to_end_latency_s\n")),
)
_TIME: Final = r"(\d+(?:\.\d+)?)\s*(\u00b5s|us|ns|ms|msecs?|secs?|seconds|min|m|s|h)\b"
_PERCENT: Final = re.compile(rf"^\s*(\d{{1,3}}(?:\.\d+)?)%\s*(?:in\s+)?{_TIME}")
_STATUS: Final = re.compile(r"^\s*\[(\d{3})\]\s+(\d+)\s+responses?")
_ERROR: Final = re.compile(r"^\s*\[(\d+)\]\s+\D")
_LABEL: Final = re.compile(r"^\s*(Total|Slowest|Fastest|Average|Success rate|Requests/sec|Min|Max):\s*(.+?)\s*$")
_WRK_LATENCY: Final = re.compile(rf"^\s*Latency\s+{_TIME}\s+{_TIME}\s+{_TIME}")
_K6: Final = re.compile(r"^\s*(?:[\u2713\u2717]\s*)?(?:\{ )?([a-z_]+)(?:[^.:]{0,40}\}?)?\s*\.{2,}\s*:\s*(.+?)\s*$")
_K6_PART: Final = re.compile(
    r"(avg|min|med|max|p\(\d+(?:\.\d+)?\))=([\d.]+)(\u00b5s|us|ns|ms|s|m|h)?(?:(\d+(?:\.\d+)?)s)?"
)
_AB: Final = re.compile(r"^(Concurrency Level|Complete requests|Failed requests|Non-2xx responses|Requests per second|"
                        r"Time per request):\s+([\d.]+)(?:\s+\[?([#/\w]+)\]?)?")  # fmt: skip
_VEGETA: Final = re.compile(r"^(Requests|Latencies|Success|Status Codes)\s+\[([^\]]+)\]\s+(.+?)\s*$")
_LLMPERF_STAT: Final = re.compile(r"^\s+(p\d+|mean|min|max|stddev)\s*=\s*([\d.eE+-]+)")
_LLMPERF_ROW: Final = re.compile(
    r"^(Number Of Errored Requests|Overall Output Throughput|Number Of Completed Requests|"
    r"Completed Requests Per Minute):\s*([\d.]+)"
)
_OF_K6: Final = {
    "http_req_duration": ("e2e", ""), "http_req_waiting": ("ttft", "first byte"),
    "http_req_connecting": ("connect", "connect time"), "http_req_blocked": ("blocked", "wait for a connection"),
    "http_req_tls_handshaking": ("tls", "TLS handshake"), "iteration_duration": ("iteration", ""),
}  # fmt: skip
_OF_LLMPERF: Final = {
    "inter_token_latency_s": ("itl", "s"), "ttft_s": ("ttft", "s"), "end_to_end_latency_s": ("e2e", "s"),
    "request_output_throughput_token_per_s": ("decode_tok_s", "tok/s"),
    "number_input_tokens": ("prompt_tokens", "tokens"), "number_output_tokens": ("output_tokens", "tokens"),
}  # fmt: skip
_IN_MS: Final = {"m": 6e4}


class _Said(NamedTuple):
    quantity: str
    stat: str
    value: float
    unit: str
    label: str
    line: int


def _tool(head: str) -> str:
    return next((name for name, marks in _MARKS if all(mark in head for mark in marks)), "")


def _matches(head: str, name: str) -> bool:
    del name
    return not head.lstrip().startswith(("{", "[")) and bool(_tool(head))


def _time(value: str, unit: str) -> float | None:
    if unit in _IN_MS:
        return float(value) * _IN_MS[unit]
    known = unit_of(unit)
    return in_unit(float(value), known, "ms") if known else None


def _read(path: Path, source: str) -> Observed:
    lines = [(at, text) for at, text in numbered_lines(path) if text.strip()]
    text = "\n".join(line for _, line in lines)
    tool = _tool(text)
    reader = {"k6": _k6, "ab": _ab, "vegeta": _vegeta, "llmperf": _llmperf}.get(tool, _hey_or_wrk)
    values: dict[str, Quoted] = {}
    seen: set[int] = set()
    failed = total = 0.0
    for said in reader(lines):
        seen.add(said.line)
        if said.quantity == "status":
            total += said.value
            failed += said.value if said.stat[:1] in {"4", "5"} else 0.0
        elif said.quantity == "error":
            total, failed = total + said.value, failed + said.value
        item = _quoted(said, source)
        if item is not None:
            values.setdefault(item.key, item)
    place = Place(source, lines[0][0] if lines else 0)
    if total and "n" not in values:
        values["n"] = Quoted(quantity="n", value=total, unit="count", label="responses", place=place)
    if total and "failed_share" not in values:
        values["failed_share"] = Quoted(
            quantity="failed_share", value=failed / total, unit="share", label="status codes", place=place
        )
    concurrency = values.get("concurrency")
    keys: dict[str, float | str] = {} if concurrency is None else {"concurrency": concurrency.value}
    name = Path(source).stem
    left = [(at, line) for at, line in lines if at not in seen and re.search(r"\d", line)]
    return Observed(
        arms=[Arm(name=name, label=name, keys=keys, values=values, place=place)] if values else [],
        understood=[
            Understood(
                source=source, format=f"output of {tool}", understood=len(lines) - len(left), total=len(lines),
                examples=[f"{at}: {line.strip()[:80]}" for at, line in left[:3]],
            )
        ],
    )  # fmt: skip


def _quoted(said: _Said, source: str) -> Quoted | None:
    known = QUANTITIES.get(said.quantity)
    if said.quantity in {"error", "block"}:
        return None
    if said.quantity == "status":
        return Quoted(
            quantity=f"status_{said.stat}", value=said.value, unit="count", label=f"status {said.stat}",
            place=Place(source, said.line),
        )  # fmt: skip
    value = in_unit(said.value, said.unit, known.unit) if known is not None and known.unit else said.value
    if value is None:
        return None
    unit = known.unit if known is not None and known.unit else said.unit
    return Quoted(
        quantity=said.quantity, stat=said.stat, value=value, unit=unit, label=said.label or said.quantity,
        place=Place(source, said.line),
    )  # fmt: skip


_COUNTS: Final = (
    (re.compile(r"(\d+) connections"), "concurrency", "connections"),
    (re.compile(r"^\s*(\d+) requests in "), "n", "requests"),
    (re.compile(r"Non-2xx or 3xx responses:\s*(\d+)"), "failed", "Non-2xx or 3xx responses"),
    (re.compile(r"Socket errors:.*?timeout (\d+)"), "timeouts", "Socket errors: timeout"),
    (_ERROR, "error", ""),
)
_NAMES: Final = {"Slowest": "max", "Max": "max", "Fastest": "min", "Min": "min", "Average": "mean"}


def _hey_or_wrk(lines: list[tuple[int, str]]) -> Iterator[_Said]:
    """hey, oha and wrk share their shape: a summary, percentiles, codes."""
    for at, text in lines:
        status, label = _STATUS.match(text), _LABEL.match(text)
        times = list(_times(text, at))
        if status is not None:
            yield _Said("status", status[1], float(status[2]), "count", "", at)
        elif times:
            yield from times
        elif label is not None:
            yield from _labelled(label[1], label[2], at)
        else:
            for pattern, quantity, name in _COUNTS:
                found = pattern.search(text)
                if found is not None:
                    yield _Said(quantity, "", float(found[1]), "count", name, at)
                    break


def _times(text: str, at: int) -> Iterator[_Said]:
    """`90% in 6.2 secs`, `90%   5.98s`, `Latency   6.11s   2.94s   12.90s` (mean, deviation, maximum)."""
    percent, latency = _PERCENT.match(text), _WRK_LATENCY.match(text)
    if percent is not None:
        value, stat = _time(percent[2], percent[3]), statistic(f"{percent[1].removesuffix('.00')}%")
        if value is not None and stat:
            yield _Said("e2e", stat, value, "ms", f"{percent[1]}%", at)
    elif latency is not None:
        for stat, place in (("mean", 1), ("std", 3), ("max", 5)):
            value = _time(latency[place], latency[place + 1])
            if value is not None:
                yield _Said("e2e", stat, value, "ms", "Latency", at)


def _labelled(label: str, value: str, at: int) -> Iterator[_Said]:
    found = re.match(rf"{_TIME}", value)
    bare = re.match(r"[\d.]+", value)
    if label in _NAMES and found is not None:
        time = _time(found[1], found[2])
        if time is not None:
            yield _Said("e2e", _NAMES[label], time, "ms", label, at)
    elif label == "Total" and found is not None:
        time = _time(found[1], found[2])
        if time is not None:
            yield _Said("duration", "", time, "ms", label, at)
    elif label == "Requests/sec" and bare is not None:
        yield _Said("req_s", "", float(bare[0]), "1/s", label, at)
    elif label == "Success rate" and bare is not None:
        yield _Said("success_share", "", float(bare[0]), "%", label, at)


def _k6(lines: list[tuple[int, str]]) -> Iterator[_Said]:
    for at, text in lines:
        found = _K6.match(text)
        if found is None or "expected_response" in text:
            continue
        name, rest = found[1], found[2]
        if name in _OF_K6:
            yield from _k6_times(name, rest, at)
        elif name in {"http_reqs", "dropped_iterations"}:
            numbers = re.findall(r"[\d.]+", rest)
            if numbers:
                quantity = "n" if name == "http_reqs" else "dropped_iterations"
                yield _Said(quantity, "", float(numbers[0]), "count", name, at)
            if name == "http_reqs" and len(numbers) > 1:
                yield _Said("req_s", "", float(numbers[1]), "1/s", name, at)
        elif name == "http_req_failed" and (share := re.match(r"([\d.]+)%", rest)) is not None:
            yield _Said("failed_share", "", float(share[1]), "%", name, at)
        elif name in {"vus", "vus_max"} and (many := re.match(r"(\d+)", rest)) is not None:
            yield _Said("concurrency", "", float(many[1]), "count", name, at)


def _k6_times(name: str, rest: str, at: int) -> Iterator[_Said]:
    quantity, label = _OF_K6[name]
    for stat, value, unit, more in _K6_PART.findall(rest):
        time = _time(value, unit or "ms")
        if time is not None:
            time += float(more) * 1e3 if more else 0.0  # `1m2.5s`
            yield _Said(quantity, statistic(stat.replace("(", "").replace(")", "")), time, "ms", label or name, at)


def _ab(lines: list[tuple[int, str]]) -> Iterator[_Said]:
    names = {"Concurrency Level": "concurrency", "Complete requests": "n", "Failed requests": "failed"}
    for at, text in lines:
        found = _AB.match(text)
        if found is not None and found[1] in names:
            yield _Said(names[found[1]], "", float(found[2]), "count", found[1], at)
        elif found is not None and found[1] == "Requests per second":
            yield _Said("req_s", "", float(found[2]), "1/s", found[1], at)
        elif found is not None and found[1] == "Time per request" and "across all" not in text:
            yield _Said("e2e", "mean", float(found[2]), "ms", found[1], at)
        elif (percent := re.match(r"^\s*(\d{1,3})%\s+(\d+)", text)) is not None:
            yield _Said("e2e", statistic(f"{percent[1]}%") or "max", float(percent[2]), "ms", f"{percent[1]}%", at)


def _vegeta(lines: list[tuple[int, str]]) -> Iterator[_Said]:
    for at, text in lines:
        found = _VEGETA.match(text)
        if found is None:
            continue
        names, values = [part.strip() for part in found[2].split(",")], [part.strip() for part in found[3].split(",")]
        if found[1] == "Status Codes":
            for code, count in re.findall(r"(\d{3}):(\d+)", found[3]):
                yield _Said("status", code, float(count), "count", "", at)
            continue
        for name, value in zip(names, values, strict=False):
            time = re.match(_TIME, value)
            if found[1] == "Latencies" and time is not None and (ms := _time(time[1], time[2])) is not None:
                yield _Said("e2e", statistic(name) or statistic(f"{name}%"), ms, "ms", name, at)
            elif found[1] == "Success" and (share := re.match(r"([\d.]+)%", value)) is not None:
                yield _Said("success_share", "", float(share[1]), "%", name, at)
            elif found[1] == "Requests" and (bare := re.match(r"[\d.]+", value)) is not None:
                quantity = {"total": "n", "rate": "offered_rps", "throughput": "req_s"}.get(name)
                if quantity:
                    yield _Said(quantity, "", float(bare[0]), "count" if quantity == "n" else "1/s", name, at)


def _llmperf(lines: list[tuple[int, str]]) -> Iterator[_Said]:
    now = ("", "")
    rows = {
        "Number Of Errored Requests": ("failed", "count", 1.0),
        "Overall Output Throughput": ("output_tok_s", "tok/s", 1.0),
        "Number Of Completed Requests": ("n", "count", 1.0),
        "Completed Requests Per Minute": ("req_s", "1/s", 60.0),
    }
    for at, text in lines:
        name = text.strip().rstrip(":")
        stat, row = _LLMPERF_STAT.match(text), _LLMPERF_ROW.match(text)
        if name in _OF_LLMPERF:
            now = _OF_LLMPERF[name]
            yield _Said("block", "", 0.0, "", "", at)
        elif stat is not None and now[0]:
            said = "std" if stat[1] == "stddev" else statistic(stat[1])
            yield _Said(
                now[0], said if now[1] != "tokens" or said != "mean" else "", float(stat[2]), now[1], now[0], at
            )
        elif row is not None:
            quantity, unit, per = rows[row[1]]
            yield _Said(quantity, "", float(row[2]) / per, unit, row[1], at)


HTTP_LOAD: Final = Format(name="HTTP load generator", matches=_matches, read=_read)
