"""Durations that cannot be, in whatever shape they come: as large as a time of day, or a whole called its part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arm_evidence.impossible_parts import Wrong
from tailrace.diagnose.arms.as_written import shown
from tailrace.diagnose.observed import Histogram, Observed, Place, Rows
from tailrace.diagnose.observed.vocabulary import QUANTITIES
from tailrace.diagnose.speech_evidence.turns import Turns, turns_of
from tailrace.model.finding import Evidence

__all__ = ["EPOCH_MS", "impossible_sizes"]

Floats = NDArray[np.float64]
EPOCH_MS: Final = 1e11
"""A duration of three years: a stamp of the wall clock from which a missing one, read as 0, was subtracted."""
_DELAYS: Final = ("end_of_turn", "transcription_delay", "llm_ttft", "tts_ttfb", "total", "stt_duration", "tts_duration")
ENOUGH: Final = 20
SAME: Final = 1e-4
LEAST: Final = 4
MOSTLY: Final = 0.8
TOKENS: Final = 8
WHOLE_MS: Final = 100.0
AT_ONCE_MS: Final = 1.0


def impossible_sizes(observed: Observed) -> Iterator[Wrong]:
    """All of them; at most one of each column, series and window."""
    for turns in turns_of(observed):
        yield from _epochs_of_turns(turns)
    yield from _epochs_of_series(observed)
    yield from _whole_in_scrapes(observed)
    for rows in observed.table("requests"):
        yield from _one_piece(rows)


def _epochs_of_turns(turns: Turns) -> Iterator[Wrong]:
    for name in _DELAYS:
        if name not in turns.values:
            continue
        bad = np.flatnonzero(np.abs(turns.get(name)) > EPOCH_MS)
        if bad.size:
            first = int(bad[0])
            yield _epoch(name.replace("_", " "), turns.get(name), f"turn {turns.names[first]}", turns.place_of(first))


def _epochs_of_series(observed: Observed) -> Iterator[Wrong]:
    for series in observed.series:
        known = QUANTITIES.get(series.name)
        if known is None or known.unit != "ms" or series.unit not in ("", "ms"):
            continue
        bad = np.flatnonzero(np.abs(series.values) > EPOCH_MS)
        if bad.size:
            first = int(bad[0])
            at = f"{series.axis} {series.at[first]:g}"
            yield _epoch(series.name.replace("_", " "), series.values, at, series.line_of(first))


def _epoch(name: str, values: Floats, where: str, place: Place) -> Wrong:
    known = values[np.isfinite(values)]
    good = known[np.abs(known) <= EPOCH_MS]
    odd = known[np.abs(known) > EPOCH_MS]
    value = float(odd[0])
    rest = f"; the other {good.size} have a mean of {good.mean() / 1e3:.3g} s" if good.size else ""
    text = (
        f"{name} is {value / 1e3:,.0f} s ({where}), the size of an epoch: a stamp is missing and was read as 0. Drop "
        f"{odd.size} of {known.size} values{rest}"
    )
    return Wrong(
        text[:1].upper() + text[1:],
        f"|{value / 1e3:.6g}| s is {abs(value) / 3.15576e10:.3g} years: a time of day minus nothing; {odd.size} of "
        f"{known.size} values",
        Evidence(text=text, source=str(place), name=name.replace(" ", "_"), value=value, unit="ms"),
        certain=True,
    )


def _whole_in_scrapes(observed: Observed) -> Iterator[Wrong]:
    """The time to the first token and the whole request have one sum and one count: both are the whole."""
    wholes = {item.order: item for item in observed.windows("e2e")}
    for first in observed.windows("ttft"):
        whole = wholes.get(first.order)
        if whole is None or not _alike(first, whole):
            continue
        mean = (first.sum or 0.0) / first.n
        seen, ends, place = _of_clients(observed)
        if seen is not None and seen > 0.5 * mean:
            continue  # the clients wait as long: nothing is streamed
        second = ""
        if seen is not None and ends is not None:
            second = f"; clients, a second clock, see a first token after {shown(seen, 'ms')} and the end after "
            second += f"{shown(ends, 'ms')} (medians)"
        text = (
            f"{first.raw or 'TTFT'} and {whole.raw or 'E2E'} are equal in the window: {mean / 1e3:.4g} s each "
            f"({(first.sum or 0.0) / 1e3:g} / {first.n:g}): the time to the first token is the whole duration{second}"
        )
        yield Wrong(
            text[:1].upper() + text[1:],
            f"{(first.sum or 0.0) / 1e3:g} / {first.n:g} = {(whole.sum or 0.0) / 1e3:g} / {whole.n:g} = "
            f"{mean / 1e3:.4g} s",
            Evidence(text=text, source=place or str(first.place), name="ttft", value=round(mean, 3), unit="ms"),
            certain=False,
            doubtful=seen is None,
        )
        return


def _alike(one: Histogram, other: Histogram) -> bool:
    if one.sum is None or other.sum is None or one.n < ENOUGH or one.n != other.n or one.sum <= 0:
        return False
    return abs(other.sum / one.sum - 1.0) <= SAME


def _of_clients(observed: Observed) -> tuple[float | None, float | None, str]:
    for rows in observed.table("requests"):
        first, whole = rows.numbers("ttft_ms"), rows.numbers("e2e_ms")
        known = np.isfinite(first) & np.isfinite(whole)
        if known.sum() >= LEAST:
            return float(np.median(first[known])), float(np.median(whole[known])), str(rows.place)
    return None, None, ""


def _one_piece(rows: Rows) -> Iterator[Wrong]:
    """Answers of many tokens of which the first and the last come at one moment."""
    first, last, whole = rows.numbers("t_first_ms"), rows.numbers("t_last_ms"), rows.numbers("e2e_ms")
    tokens = rows.numbers("output_tokens")
    known = np.isfinite(first) & np.isfinite(last) & (whole > WHOLE_MS) & (tokens >= TOKENS)
    with np.errstate(invalid="ignore"):
        at_once = known & (last - first >= 0) & (last - first < AT_ONCE_MS)
    n, bad = int(known.sum()), int(at_once.sum())
    if n < LEAST or bad < MOSTLY * n:
        return
    low, high = float(tokens[at_once].min()), float(tokens[at_once].max())
    text = (
        f"first and last token come at one moment in {bad} of {n} requests, with {low:g} to {high:g} tokens in "
        f"{shown(float(np.median(whole[at_once])), 'ms')} (median): the answer came in one piece, so this TTFT is E2E "
        "and no time to a first token was measured (streaming is off in the client, or a hop holds the stream back)"
    )
    yield Wrong(
        text[:1].upper() + text[1:],
        f"last - first token = 0 ms with {low:g} tokens or more, in {bad} of {n}",
        Evidence(text=text, source=str(rows.place), name="t_first_ms", value=float(bad)),
        certain=False,
        doubtful=True,
    )
