"""Engines side by side: stages, throughput, tails, resources and failures of two or more arms, without a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.arms import METRICS, ArmData, Source
from tailrace.analyze.bench_summary import met_objectives
from tailrace.analyze.classes import classify, prompt_tokens
from tailrace.analyze.comparable import not_comparable
from tailrace.analyze.compare import prepare
from tailrace.analyze.failures import failures_by_stage
from tailrace.analyze.other_changes import conditions_of
from tailrace.analyze.same_work import same_work
from tailrace.analyze.trade_offs import metric_words
from tailrace.model.measurement import EngineRow, EngineView
from tailrace.model.stage import QUEUE_ENGINE, QUEUE_GATEWAY, STAGES
from tailrace.model.thresholds import Objectives
from tailrace.stats.quantiles import needed, quantile, supported

__all__ = ["engine_view"]

Floats = NDArray[np.float64]
Value = float | str | None

_QUANTILES: Final = (0.5, 0.95, 0.99)
_CONDITIONS: Final = ("engine", "engine_version", "model", "dtype", "quantization", "gpu", "gpu_memory_bytes", "loop")
_SOURCE_ROWS: Final = 2000
_STAGE_NAMES: Final = (*map(str, STAGES), QUEUE_GATEWAY, QUEUE_ENGINE)


def engine_view(arms: Mapping[str, Source | Sequence[Source]], *, objectives: Objectives | None = None) -> EngineView:
    """Put the arms beside each other. What one of them cannot report is `None` and its row not comparable, never 0."""
    ready = [prepare(source, name) for name, source in arms.items()]
    rows = [*_conditions(ready), *_work(ready), *_throughput(ready, objectives), *_latency(ready), *_stages(ready)]
    rows += [*_resources(ready), *_failures(ready)]
    return EngineView(engines=list(arms), rows=rows, checks=_checks(ready))


def _row(
    group: str, name: str, values: list[Value], unit: str = "", *, arms: Sequence[ArmData], note: str = ""
) -> EngineRow:
    lacking = [arm.name for arm, value in zip(arms, values, strict=True) if value is None]
    why = note
    if lacking:
        why = f"{' and '.join(lacking)} {'does' if len(lacking) == 1 else 'do'} not report it" + (
            f"; {note}" if note else ""
        )
    return EngineRow(group=group, name=name, unit=unit, values=values, comparable=not lacking, why=why)


def _conditions(arms: Sequence[ArmData]) -> list[EngineRow]:
    told = [conditions_of(arm)[0] for arm in arms]
    out = []
    for name in _CONDITIONS:
        values: list[Value] = [_told(one.get(name)) for one in told]
        if any(value is not None for value in values):
            # An unknown condition is no metric that is lacking: it is shown as unknown.
            shown: list[Value] = ["unknown" if value is None else value for value in values]
            out.append(EngineRow(group="conditions", name=name.replace("_", " "), values=shown))
    return out


def _told(value: Any) -> Value:
    if value is None or isinstance(value, str | float):
        return value
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _work(arms: Sequence[ArmData]) -> list[EngineRow]:
    def median(values: Floats) -> Value:
        known = values[~np.isnan(values)]
        return float(np.median(known)) if known.size else None

    return [
        _row("work", "requests", [float(len(arm.every)) for arm in arms], arms=arms),
        _row("work", "prompt tokens, median", [median(prompt_tokens(arm.every)) for arm in arms], arms=arms),
        _row("work", "output tokens, median", [median(arm.done.column("output_tokens")) for arm in arms], arms=arms),
    ]


def _throughput(arms: Sequence[ArmData], objectives: Objectives | None) -> list[EngineRow]:
    def rate(amount: Callable[[ArmData], float | None]) -> list[Value]:
        out: list[Value] = []
        for arm in arms:
            value = amount(arm)
            out.append(None if value is None or not arm.duration_s else value / arm.duration_s)
        return out

    def tokens(arm: ArmData) -> float | None:
        known = arm.done.column("output_tokens")
        return float(np.nansum(known)) if (~np.isnan(known)).any() else None

    out = [
        _row("throughput", "completed requests", rate(lambda arm: float(len(arm.done))), "/s", arms=arms),
        _row("throughput", "output tokens", rate(tokens), "/s", arms=arms),
    ]
    if objectives is not None:
        good = rate(lambda arm: float(met_objectives(arm.every, objectives).sum()))
        out.append(_row("throughput", "goodput", good, "/s", arms=arms))
    return out


def _latency(arms: Sequence[ArmData]) -> list[EngineRow]:
    apart = not_comparable(arms)
    out = []
    for metric in METRICS:
        values = [arm.gaps.ms if metric == "chunk_gap_ms" else arm.column(metric) for arm in arms]
        values = [one[~np.isnan(one)] for one in values]
        absent = [_absent(arm, metric) for arm in arms]
        if all(not one.size or gone for one, gone in zip(values, absent, strict=True)):
            continue
        for p in _QUANTILES:
            row = _quantile_row("latency", metric_words(metric), values, p, arms, absent=absent)
            if metric in apart and not row.comparable:
                row = EngineRow(
                    group=row.group,
                    name=row.name,
                    unit=row.unit,
                    values=row.values,
                    comparable=False,
                    needs=row.needs,
                    why=apart[metric],
                )
            out.append(row)
    return out


def _absent(arm: ArmData, metric: str) -> bool:
    """Whether the arm's source does not hold the metric, whatever its columns say."""
    return any(metric in header.absent or (header.granularity == "mean" and "gap" in metric) for header in arm.headers)


def _quantile_row(
    group: str,
    words: str,
    values: Sequence[Floats],
    p: float,
    arms: Sequence[ArmData],
    *,
    absent: Sequence[bool],
    note: str = "",
) -> EngineRow:
    shown: list[Value] = []
    thin = []
    needs: dict[str, int] = {}
    for arm, one, gone in zip(arms, values, absent, strict=True):
        enough = supported(p, one.size)
        shown.append(quantile(one, p) if one.size and enough and not gone else None)
        if one.size and not enough and not gone:
            thin.append(f"{arm.name} has {one.size} values, {needed(p)} support it")
            needs[arm.name] = needed(p)
    row = _row(group, f"{words} p{p * 100:g}", shown, "ms", arms=arms, note=note)
    if not thin:
        return row
    why = "; ".join([*thin, *([note] if note else [])])
    return EngineRow(group=group, name=row.name, unit="ms", values=shown, comparable=False, needs=needs, why=why)


def _stages(arms: Sequence[ArmData]) -> list[EngineRow]:
    out = []
    for stage in _STAGE_NAMES:
        values = [arm.done.ms(stage) for arm in arms]
        values = [one[~np.isnan(one)] for one in values]
        if not any(one.size for one in values):
            continue
        sources = [_source(arm, stage) if one.size else "" for arm, one in zip(arms, values, strict=True)]
        kinds = {source for source in sources if source}
        note = ""
        if len(kinds) > 1:
            said = [f"{arm.name}: {source}" for arm, source in zip(arms, sources, strict=True) if source]
            note = "known differently: " + ", ".join(said)
        out += [
            _quantile_row("stages", stage, values, p, arms, absent=[False] * len(arms), note=note) for p in (0.5, 0.99)
        ]
    return out


def _source(arm: ArmData, stage: str) -> str:
    """How the stage is known, in most of an even sample of the rows."""
    seen = Counter(
        str(row.get(stage, "")).partition("(")[0]
        for row in arm.done.column("stage_sources")[:: max(1, len(arm.done) // _SOURCE_ROWS)]
    )
    seen.pop("", None)
    return seen.most_common(1)[0][0] if seen else ""


def _resources(arms: Sequence[ArmData]) -> list[EngineRow]:
    """From the engine's metrics during the run where they were scraped, else from what the records saw."""

    def of(field: str, reduce: Callable[[Floats], float], column: str = "", scale: float = 1.0) -> list[Value]:
        out: list[Value] = []
        for arm in arms:
            known = np.array(
                [value for state in arm.states if (value := getattr(state, field)) is not None], dtype=float
            )
            if not known.size and column:
                seen = arm.done.column(column)
                known = seen[~np.isnan(seen)]
            out.append(float(reduce(known)) * scale if known.size else None)
        return out

    def grown(field: str) -> list[Value]:
        out: list[Value] = []
        for arm in arms:
            known = [value for state in arm.states if (value := getattr(state, field)) is not None]
            # A counter that fell was started anew: what it grew is then not known from its ends.
            out.append(float(known[-1] - known[0]) if len(known) > 1 and known[-1] >= known[0] else None)
        return out

    def hit(arm: ArmData) -> Value:
        ends = [
            (state.prefix_hit_tokens_total, state.prefix_query_tokens_total)
            for state in arm.states
            if state.prefix_hit_tokens_total is not None and state.prefix_query_tokens_total is not None
        ]
        if len(ends) < 2 or ends[-1][1] <= ends[0][1]:
            return None
        return 100.0 * (ends[-1][0] - ends[0][0]) / (ends[-1][1] - ends[0][1])

    rows = [
        ("running requests, mean", of("running", np.mean, "running_at_first_token"), ""),
        ("waiting requests, most", of("waiting", np.max, "waiting_at_admission"), ""),
        ("KV cache in use, most", of("kv_usage", np.max, "kv_usage_at_first_token", 100.0), "%"),
        ("preemptions", grown("preemptions_total"), ""),
        ("prefix cache hits", [hit(arm) for arm in arms], "%"),
    ]
    return [
        _row("resources", name, values, unit, arms=arms)
        for name, values, unit in rows
        if any(value is not None for value in values)
    ]


def _failures(arms: Sequence[ArmData]) -> list[EngineRow]:
    out = [
        _row("failures", "not completed", [100.0 * arm.failed / max(len(arm.every), 1) for arm in arms], "%", arms=arms)
    ]
    tables = [
        {f"{row.outcome} ({row.reason}) in {row.stage}": row.n for row in failures_by_stage(arm.every)} for arm in arms
    ]
    # Here 0 is known: every request has an outcome.
    out += [
        _row("failures", name.replace("_", " "), [float(table.get(name, 0)) for table in tables], arms=arms)
        for name in dict.fromkeys(name for table in tables for name in table)
    ]
    return out


def _checks(arms: Sequence[ArmData]) -> list[str]:
    out = [
        f"client_limited: in {arm.name} the load generator was the limit ({arm.client.why})"
        for arm in arms
        if arm.client.limited
    ]
    first = arms[0]
    for arm in arms[1:]:
        rates = (first.request_rate, arm.request_rate)
        work = same_work(first.every, arm.every, classify(first.every, arm.every), rates=rates)
        differs = [text for text in work["differs"] if not text.startswith("the arrival times differ")]
        if differs:
            out.append(
                f"{arm.name} did not do the work of {first.name} (A is {first.name}, B {arm.name}): "
                + "; ".join(differs)
            )
    return out
