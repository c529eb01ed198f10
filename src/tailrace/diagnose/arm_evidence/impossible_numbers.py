"""Numbers that contradict themselves: negative durations, epochs, shares above 1, a p99 below the p50."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.arm_evidence.impossible_parts import (
    Wrong,
    no_time_at_all,
    one_number_twice,
    parts_of_arm,
    parts_of_rows,
    series_of_zeros,
)
from tailrace.diagnose.arm_evidence.impossible_rows import impossible_columns
from tailrace.diagnose.arm_evidence.impossible_sizes import EPOCH_MS, impossible_sizes
from tailrace.diagnose.arms.again import MEASURE
from tailrace.diagnose.arms.as_written import called, shown
from tailrace.diagnose.observed import Arm, Histogram, Observed, Quoted, Rows
from tailrace.diagnose.observed.vocabulary import QUANTITIES
from tailrace.model.finding import Evidence, Finding, Level, Proof

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["EPOCH_MS", "impossible_numbers", "unsound_rows"]

FEW: Final = 0.05
"""So few bad rows are left out; more say that nothing of the source can be trusted."""
_TOLERANCE: Final = 1.002
_ALL: Final = re.compile(r"\ball\b|\btotal\b|\bincl\w*|with failed", re.IGNORECASE)
_ORDER: Final = ("min", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p999", "max")
_ADVICE: Final = (
    "Drop these values and count them, separate failed requests from finished ones, and compute the rest again; repair "
    "the stamp that is missing (a first token that never came has no time)."
)


def impossible_numbers(cause: Cause, observed: Observed) -> Finding | None:
    """METRIC_BUG of tables, summaries and histograms; of rows where more than a few are impossible, or some are."""
    wrong = [one for arm in observed.arms for one in _of_arm(arm)]
    wrong += [*one_number_twice(observed.arms), *series_of_zeros(observed), *parts_of_rows(observed)]
    wrong += [*impossible_columns(observed), *impossible_sizes(observed)]
    wrong += [one for histogram in observed.histograms for one in _of_histogram(histogram)]
    share, rows = _of_rows(observed)
    wrong += rows
    if not wrong:
        return None
    # Rows that cannot be are left out while they are few: the rest still tells.
    only_rows = bool(rows) and len(wrong) == len(rows)
    certain = any(one.certain for one in wrong)
    # What failed requests do to a summary is known; the numbers of the successful ones beside it still tell.
    mild = (only_rows and share <= FEW) or all(one.doubtful or "inside the percentiles" in one.text for one in wrong)
    level = Level.SUSPECTED if mild else Level.PROVEN if certain else Level.CONSISTENT
    first = next((one for one in wrong if one.certain), wrong[0])
    more = ", and others like it" if len(wrong) > 1 else ""
    n = next((count for arm in observed.arms if (count := arm.get("n")) and math.isfinite(count)), None)
    evidence = [one.evidence for one in wrong[:6]]
    counted = ""
    if n:
        counted = f" Drop it and count it among the n = {n:.0f}."
        evidence.append(Evidence(text=f"n = {n:.0f} values", source=first.evidence.source, name="n", value=n))
    return cause.finding(
        statement=f"{first.text}{more}: the number is wrong, not the system.{counted}",
        evidence=evidence,
        explains_ms=None,
        relation=first.relation,
        n=int(n or 0),
        advice=_ADVICE,
        price="None: nothing can be concluded from these values, about prefill, queue or anything else.",
        verify=MEASURE,
        level=level,
        proof=Proof.IMPOSSIBLE,
    )


def _of_arm(arm: Arm) -> Iterator[Wrong]:
    for quoted in arm.values.values():
        if not quoted.relative:
            yield from _of_number(arm, quoted)
    by: dict[str, dict[str, Quoted]] = {}
    for quoted in arm.values.values():
        if quoted.stat and not quoted.relative and not quoted.qualifier and quoted.value >= 0:
            by.setdefault(quoted.quantity, {})[quoted.stat] = quoted
    for quantity, stats in by.items():
        yield from _of_order(arm, quantity, stats)
    for stat in ("mean", "p50", "p90", "p95", "p99"):
        first, whole = arm.values.get(f"ttft.{stat}"), arm.values.get(f"e2e.{stat}")
        if first is None or whole is None or first.relative or whole.relative or first.unit != whole.unit:
            continue
        if not (first.qualifier or whole.qualifier) and first.value > 1.02 * whole.value > 0:
            yield _wrong(
                arm, first,
                f"TTFT {stat} {shown(first.value, 'ms')} is longer than E2E {stat} {shown(whole.value, 'ms')} in "
                f"{arm.name}",
                f"{shown(first.value)} > {shown(whole.value)} ms: the first token would come after the end",
            )  # fmt: skip
    yield from _of_zeros(arm)
    yield from no_time_at_all(arm)
    yield from parts_of_arm(arm)
    yield from _of_failed(arm)


def _of_number(arm: Arm, quoted: Quoted) -> Iterator[Wrong]:
    known = QUANTITIES.get(quoted.quantity)
    unit = known.unit if known else quoted.unit
    name = f"{quoted.stat} {called(quoted.quantity)}".strip()
    if quoted.unit in {"ms", "s"}:
        value = quoted.value if quoted.unit == "ms" else quoted.value * 1e3
        if abs(value) > EPOCH_MS:
            yield _wrong(
                arm, quoted,
                f"{name} is {shown(quoted.value, quoted.unit)}, the size of an epoch: a missing stamp was read as 0",
                f"|{shown(quoted.value)}| {quoted.unit} is {shown(round(abs(value) / 3.15576e10, 1))} years: a time of "
                "day minus nothing",
            )  # fmt: skip
        elif value < 0 and quoted.quantity not in {"late", "end_of_turn", "transcription_delay"}:
            yield _wrong(
                arm, quoted, f"{name} is negative: {shown(quoted.value, quoted.unit)} in {arm.name}",
                f"{shown(quoted.value, quoted.unit)} < 0: two clocks, or a missing stamp",
            )  # fmt: skip
    elif unit == "share" and quoted.unit == "share" and not -0.001 <= quoted.value <= 1.001:
        yield _wrong(
            arm, quoted, f"{quoted.quantity.replace('_', ' ')} is {shown(quoted.value, 'share')} in {arm.name}",
            f"{shown(quoted.value, 'share')} is outside of 0 to 100 %",
        )  # fmt: skip
    elif unit in {"count", "tokens", "tok/s", "1/s"} and quoted.value < 0:
        yield _wrong(
            arm, quoted, f"{quoted.quantity.replace('_', ' ')} is negative: {shown(quoted.value)} in {arm.name}",
            f"{shown(quoted.value)} < 0",
        )  # fmt: skip


def _of_order(arm: Arm, quantity: str, stats: dict[str, Quoted]) -> Iterator[Wrong]:
    ordered = [stats[name] for name in _ORDER if name in stats]
    for low, high in pairwise(ordered):
        if low.value > high.value * _TOLERANCE and low.unit == high.unit:
            yield _wrong(
                arm, high,
                f"{quantity.upper()} {high.stat} {shown(high.value, high.unit)} is below its {low.stat} "
                f"{shown(low.value, low.unit)} in {arm.name}",
                f"{high.stat} {shown(high.value)} < {low.stat} {shown(low.value)}: a higher quantile cannot be lower",
            )  # fmt: skip
            return
    mean, top = stats.get("mean"), stats.get("max")
    if mean is not None and top is not None and mean.value > top.value * _TOLERANCE:
        yield _wrong(
            arm, mean, f"{quantity.upper()} mean {shown(mean.value, mean.unit)} is above its max {shown(top.value)}",
            f"mean {shown(mean.value)} > max {shown(top.value)}",
        )  # fmt: skip


def _of_zeros(arm: Arm) -> Iterator[Wrong]:
    for stat in ("p50", "mean", ""):
        ttft = arm.get("ttft", stat) if stat else arm.get("ttft")
        gap = next((v for v in (arm.get("itl", stat), arm.get("tpot", stat)) if v is not None), None)
        whole = arm.get("e2e", stat)
        quoted = arm.quoted("ttft", stat) if stat else arm.quoted("ttft")
        if quoted is not None and ttft == 0 and gap == 0 and (whole or 0) > 0:
            yield _wrong(
                arm, quoted,
                f"TTFT and the gaps are 0 while E2E is {shown(whole or 0, 'ms')} in {arm.name}: nothing was "
                "streamed, or "
                "the whole answer came in one chunk",
                f"0 + 0 x tokens = 0, not {shown(whole or 0, 'ms')}",
            )  # fmt: skip
            return
    longest, first = arm.quoted("itl", "max"), arm.quoted("ttft", "max")
    both = longest is not None and first is not None and longest.value > 0
    if both and longest and first and abs(longest.value - first.value) <= 1e-3 * first.value:
        yield _wrong(
            arm, longest,
            f"the longest ITL equals the longest TTFT, {shown(first.value, 'ms')}, in {arm.name}: the first token's "
            "wait was counted among the gaps",
            f"max ITL {shown(longest.value)} = max TTFT {shown(first.value)} ms",
            certain=False,
        )  # fmt: skip


def _of_failed(arm: Arm) -> Iterator[Wrong]:
    """A latency of all requests beside that of the successful ones: failed requests are inside the percentiles."""
    for quoted in arm.values.values():
        if quoted.relative or quoted.unit != "ms" or not _ALL.search(quoted.qualifier):
            continue
        good = next(
            (
                other for other in arm.values.values()
                if other is not quoted and other.unit == "ms"
                and (other.quantity, other.stat) == (quoted.quantity, quoted.stat)
                and not other.relative and not _ALL.search(other.qualifier)
            ),
            None,
        )  # fmt: skip
        if good is None or good.value <= 0 or 0.9 <= quoted.value / good.value <= 1.1:
            continue
        name = f"{quoted.quantity.upper()} {quoted.stat}".strip()
        yield _wrong(
            arm, quoted,
            f"{name} is {shown(quoted.value, 'ms')} over all requests and {shown(good.value, 'ms')} over the "
            "successful ones in "
            f"{arm.name}: failed requests are inside the percentiles",
            f"{shown(quoted.value)} / {shown(good.value)} = {quoted.value / good.value:.2f}",
            certain=False,
        )  # fmt: skip
        return


def _wrong(arm: Arm, quoted: Quoted, text: str, relation: str, *, certain: bool = True) -> Wrong:
    place = str(quoted.place) or str(arm.place) or "facts"
    evidence = Evidence(
        text=f"{text} ({quoted.label or quoted.key})",
        source=place,
        name=quoted.key,
        value=quoted.value,
        unit=quoted.unit,
    )
    return Wrong(text[:1].upper() + text[1:], relation, evidence, certain)


def _of_histogram(histogram: Histogram) -> Iterator[Wrong]:
    """All values in the first bucket, of which the mean lies above it (or is 0): the stamp was never set."""
    if histogram.n < 10 or not histogram.bounds or histogram.sum is None or histogram.counts[0] < histogram.n:
        return
    mean, top = histogram.sum / histogram.n, histogram.bounds[0]
    if 0 < mean <= top:
        return
    text = (
        f"all {histogram.n:.0f} values of {histogram.raw or histogram.name} lie in the first bucket (up to "
        f"{shown(top, histogram.unit)}), of which the mean {shown(mean, histogram.unit)} is none"
    )
    yield Wrong(
        text[:1].upper() + text[1:],
        f"{histogram.counts[0]:.0f} of {histogram.n:.0f} in one bucket, mean {shown(mean, histogram.unit)}",
        Evidence(text=text, source=str(histogram.place), name=histogram.name, value=mean, unit=histogram.unit),
        certain=mean > top,
    )


def unsound_rows(rows: Rows) -> dict[str, np.ndarray]:
    """Rule -> mask of the rows of a table of requests that break it."""
    send, first, last = rows.numbers("t_send_ms"), rows.numbers("t_first_ms"), rows.numbers("t_last_ms")
    with np.errstate(invalid="ignore"):
        out = {
            "the first token comes before the send": first < send - 1e-6,
            "the end comes before the send": last < send - 1e-6,
            "the last token comes before the first": last < first - 1e-6,
            "the request takes longer than three years": np.abs(last - send) > EPOCH_MS,
        }
        for name in ("ttft_ms", "e2e_ms", "queue_ms", "prefill_ms", "decode_ms", "preprocess_ms", "tpot_ms"):
            if rows.has(name):
                values = rows.numbers(name)
                out[f"{name} is negative, or an epoch"] = (values < 0) | (np.abs(values) > EPOCH_MS)
    return out


def _of_rows(observed: Observed) -> tuple[float, list[Wrong]]:
    out: list[Wrong] = []
    worst = 0.0
    for rows in observed.table("requests"):
        n = len(rows)
        for rule, mask in unsound_rows(rows).items():
            bad = int(mask.sum())
            if not bad:
                continue
            worst = max(worst, bad / n)
            at = rows.line_of(int(np.flatnonzero(mask)[0]))
            text = f"in {bad} of {n} requests {rule}; they are left out"
            out.append(
                Wrong(
                    text[:1].upper() + text[1:],
                    f"{bad} of {n} = {bad / n:.1%}",
                    Evidence(text=text, source=str(at), name="impossible", value=float(bad)),
                    certain=True,
                )
            )
    return worst, out
