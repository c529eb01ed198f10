"""What the load generators of vLLM and SGLang print: `label: value` rows under "Serving Benchmark Result".

The two print the same table with other words. Which of them it was decides what its E2E and TPOT mean; where no word
tells, only what is equal in both is put under our names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tailrace.analyze.aggregate import Aggregate
from tailrace.diagnose.readers.foreign_json import count, finite, lines
from tailrace.diagnose.readers.imported import Imported, aggregate, arrival_of, engine_of, metric
from tailrace.model.conditions import Conditions
from tailrace.model.errors import InputError

__all__ = ["TITLE", "read_bench_console"]

TITLE: Final = "Serving Benchmark Result"
_STAMP: Final = re.compile(r"^\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?\]?\s+")
_ROW: Final = re.compile(r"^\s*(?P<label>[A-Za-z][^:]*?):\s+(?P<value>\S+)\s*$")
_METRIC: Final = re.compile(
    r"^(?P<stat>Mean|Median|P\d+(?:\.\d+)?|Std|Max|Min) (?P<name>TTFT|TPOT|ITL|E2EL|E2E Latency) \(ms\)$"
)
_STATS: Final = {"Mean": "mean", "Median": "p50", "Max": "max", "Min": "min", "P99.9": "p999"}
_SGLANG: Final = ("Traffic request rate", "Max request concurrency", "Total generated tokens (retokenized)", "Backend")
_VLLM: Final = ("Maximum request concurrency", "Request rate configured (RPS)", "Failed requests")


def read_bench_console(path: Path) -> Imported:
    """Its tables, in order. InputError where there is none, or no row in it."""
    tables: list[dict[str, str]] = []
    understood = seen = 0
    for _, raw in lines(path):
        text = _STAMP.sub("", raw.decode("utf-8", "replace").rstrip())
        if TITLE in text:
            tables.append({})
            continue
        row = _ROW.match(text) if tables else None
        if row is not None and not set(text.strip()) <= set("=-"):
            seen += 1
            label = row["label"].strip()
            if _METRIC.match(label) or finite(_number(row["value"])) is not None or label in (*_SGLANG, *_VLLM):
                tables[-1].setdefault(label, row["value"])
                understood += 1
    if not any(tables):
        raise InputError(
            f'there is no row under "{TITLE}"', place=str(path), remedy="Give the whole table that the tool printed."
        )
    notes = [f"{seen - understood} of {seen} rows were not understood"] if understood < seen else []
    return Imported(
        items=[_aggregate(path, table) for table in tables if table],
        notes=[*notes, "a printed table holds percentiles only, no requests"],
    )


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _aggregate(path: Path, table: dict[str, str]) -> Aggregate:
    number = {label: _number(value) for label, value in table.items()}
    stats: dict[str, dict[str, float | None]] = {}
    for label, value in number.items():
        found = _METRIC.match(label)
        if found is not None:
            name = _STATS.get(found["stat"], found["stat"].lower())
            stats.setdefault(found["name"], {}).setdefault(name, value)
    sglang = "E2E Latency" in stats or any(label in table for label in _SGLANG)
    vllm = not sglang and ("E2EL" in stats or any(label in table for label in _VLLM))
    tool = "sglang" if sglang else "vllm"
    n = count(number.get("Successful requests"))
    failed = count(number.get("Failed requests")) or 0
    metrics = {"ttft_ms": metric(stats.get("TTFT", {}), n=n)}
    theirs: dict[str, dict[str, float]] = {}
    per_token = sglang and bool(number.get("Accept length"))
    for name, ours, fits in (
        ("ITL", "chunk_gap_ms", not per_token),
        ("TPOT", "tpot_ms", vllm),
        ("E2EL", "e2e_last_token_ms", True),
        ("E2E Latency", "e2e_ms", True),
    ):
        if name not in stats:
            continue
        if fits:
            metrics[ours] = metric(stats[name], n=n if name.startswith("E2E") else None)
        else:
            theirs[name.lower()] = {key: value for key, value in stats[name].items() if value is not None}
    rate = _number(table.get("Traffic request rate", "")) or number.get("Request rate configured (RPS)")
    limit = number.get("Maximum request concurrency") or number.get("Max request concurrency")
    return aggregate(
        path,
        tool,
        metrics,
        n=(n or 0) + failed,
        requests_per_s=number.get("Request throughput (req/s)"),
        tokens_per_s=number.get("Output token throughput (tok/s)"),
        goodput_per_s=number.get("Request goodput (req/s)"),
        errors={"unknown": failed} if failed else {},
        theirs=theirs,
        arrival=arrival_of(finite(rate), count(limit), at_once=n),
        conditions=Conditions(engine=engine_of(table.get("Backend")), tool=f"{tool} (printed)"),
        notes=[] if sglang or vllm else ["the table is printed by vLLM and SGLang alike; TPOT is not put under ours"],
    )
