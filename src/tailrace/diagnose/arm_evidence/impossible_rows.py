"""Columns of requests and turns that cannot be what they are called: no time at all, a timer instead of a delay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arm_evidence.impossible_parts import Wrong, timer_told
from tailrace.diagnose.arms.as_written import shown
from tailrace.diagnose.observed import Observed, Rows
from tailrace.diagnose.readers.heading import heading
from tailrace.model.finding import Evidence

__all__ = ["impossible_columns"]

Floats = NDArray[np.float64]
LEAST: Final = 4
MOSTLY: Final = 0.8
NO_TIME_MS: Final = 0.05
"""No packet comes back so soon."""
WHOLE_MS: Final = 20.0
LONGER: Final = 1.1
MARGIN_MS: Final = 20.0
APART: Final = 3.0
"""Times a reported delay is what the stamps beside it give, or the reverse."""
_STAGE: Final = re.compile(r"^(stt|asr|llm|tts|vad|synth\w*|transcri\w*)_(.+)$")
_DELAY: Final = re.compile(
    r"^(?:stt|asr)?_?(?:transcription|final|transcript|finali[sz]ation|stt|asr)_(?:delay|latency|ttfb|ttf)"
)
_FIRST: Final = re.compile(r"ttfb|ttft|first")
_WHOLE: Final = re.compile(
    r"(?:(?:total|whole|full|e2e|end_to_end|processing|synthesis|generation|transcription|inference|request)_)*"
    r"(?:processing|duration|total|latency|elapsed|time)(?:_(?:total|time|duration|latency|m?s))*"
)
"""What a stage takes from end to end; its queue, its start or its delay has no first byte in it."""


def impossible_columns(observed: Observed) -> Iterator[Wrong]:
    """All such columns; at most one of each kind a table."""
    for rows in observed.table("requests"):
        yield from _no_first_token(rows)
    for rows in observed.rows:
        if rows.kind in {"turns", "moments"}:
            columns = {name: rows.numbers(name) for name, values in rows.columns.items() if values.dtype != object}
            yield from _stage_of_zeros(rows, columns)
            yield from _delay_against_stamps(observed, rows, columns)


def _no_first_token(rows: Rows) -> Iterator[Wrong]:
    """Every first token within a hundredth of a millisecond of the send, in requests that took time."""
    first, whole = rows.numbers("ttft_ms"), rows.numbers("e2e_ms")
    known = np.isfinite(first) & np.isfinite(whole) & (whole > WHOLE_MS) & (first >= 0)
    none = known & (first <= NO_TIME_MS)
    n, bad = int(known.sum()), int(none.sum())
    if n < LEAST or bad < MOSTLY * n:
        return
    second = _second_clock(rows)
    prompts = rows.numbers("prompt_tokens")[none]
    asked = f" with {shown(float(np.nanmin(prompts)))} prompt tokens or more" if np.isfinite(prompts).any() else ""
    value = float(np.median(first[none]))
    words = "0 ms (zero)" if value == 0 else shown(value, "ms")
    text = (
        f"TTFT is {words} in {bad} of {n} requests{asked}, which took {shown(float(np.median(whole[none])), 'ms')} in "
        f"all (median): no answer begins so soon, the stamp is set when the stream opens or is missing{second}; drop "
        f"these {bad} values"
    )
    place = str(rows.line_of(int(np.flatnonzero(none)[0])))
    yield Wrong(
        text,
        f"{words} < any way there and back: a constant of the instrument, in {bad} of {n}",
        Evidence(text=text, source=place, name="ttft", value=value, unit="ms"),
        certain=True,
    )


def _second_clock(rows: Rows) -> str:
    """What another column says of the first token."""
    for name, column in rows.columns.items():
        if name == "ttft_ms" or column.dtype == object or heading(name).quantity != "ttft":
            continue
        known = column[np.isfinite(column)]
        if known.size >= LEAST and float(np.median(known)) > NO_TIME_MS:
            low, middle, high = (shown(float(value), "ms") for value in np.quantile(known, (0.0, 0.5, 1.0)))
            return f"; a second clock ({name.replace('_', ' ')}) says {low} to {high}, median {middle}"
    return ""


def _stage_of_zeros(rows: Rows, columns: dict[str, Floats]) -> Iterator[Wrong]:
    """A stage that takes less time in (nearly) all rows than its own first byte does: the whole is below its part."""
    for name, values in columns.items():
        stage = _STAGE.match(name)
        known = values[np.isfinite(values)]
        if stage is None or known.size < LEAST or not _WHOLE.fullmatch(stage[2]):
            continue
        for other, part in columns.items():
            inner = _STAGE.match(other)
            first = part[np.isfinite(part)]
            if inner is None or inner[1] != stage[1] or not _FIRST.search(inner[2]) or first.size < LEAST:
                continue
            low, high = float(first.min()), float(first.max())
            if low <= 0:
                continue
            with np.errstate(invalid="ignore"):
                below = (part > LONGER * values) & (part > values + MARGIN_MS)
            bad = int(below.sum())
            if bad < MOSTLY * known.size:
                continue
            if known.any():
                yield _below(rows, name, other, values[below], part[below], known.size)
                return
            text = (
                f"{name.replace('_', ' ')} is 0 (zero) in all {known.size} rows while {other.replace('_', ' ')} of the "
                f"same rows is {shown(low, 'ms')} to {shown(high, 'ms')}: a whole below its own first byte is "
                "impossible, the stopwatch does not run over the work"
            )
            yield Wrong(
                text[:1].upper() + text[1:],
                f"0 < {shown(low, 'ms')}: the whole cannot be shorter than its first part, in {known.size} of "
                f"{known.size}",
                Evidence(text=text, source=str(rows.place), name=name, value=0.0, unit="ms"),
                certain=True,
            )
            return


def _below(rows: Rows, name: str, other: str, whole: Floats, part: Floats, n: int) -> Wrong:
    names = [one.replace("_", " ") for one in (other, name)]
    text = (
        f"{names[0]} ({shown(float(part.min()), 'ms')} to {shown(float(part.max()), 'ms')}) is longer than {names[1]} "
        f"({shown(float(whole.min()), 'ms')} to {shown(float(whole.max()), 'ms')}) in {part.size} of {n} rows: a first "
        "part cannot be longer than the whole, the two clocks do not begin together"
    )
    return Wrong(
        text[:1].upper() + text[1:],
        f"{shown(float(np.median(part)))} > {shown(float(np.median(whole)))} ms (medians)",
        Evidence(text=text, source=str(rows.place), name=name, value=float(np.median(whole)), unit="ms"),
        certain=True,
    )


def _delay_against_stamps(observed: Observed, rows: Rows, columns: dict[str, Floats]) -> Iterator[Wrong]:
    """A delay after speech that hardly varies, and stamps of the same rows that give another one."""
    if "final_recv" not in columns or "speech_end" not in columns:
        return
    lag = columns["final_recv"] - columns["speech_end"]
    for name, values in columns.items():
        known = np.isfinite(values) & np.isfinite(lag) & (lag > 0) & (values > 0)
        if _DELAY.match(name) is None or int(known.sum()) < LEAST:
            continue
        ratio = float(np.median(values[known] / lag[known]))
        if 1.0 / APART < ratio < APART or float(np.ptp(values[known])) > 0.05 * float(np.median(values[known])):
            continue
        low, high = float(lag[known].min()) / 1e3, float(lag[known].max()) / 1e3
        mean, said = float(lag[known].mean()) / 1e3, float(np.median(values[known])) / 1e3
        text = (
            f"{name.replace('_', ' ')} is {said:g} s in all {int(known.sum())} rows, while the stamps of the same rows "
            f"give {low:.2f} to {high:.2f} s (final received - speech end, mean {mean:.2f} s)"
            f"{timer_told(observed, values[known])}"
        )
        yield Wrong(
            text[:1].upper() + text[1:],
            f"{said:g} / {mean:.2f} s = {ratio:.2g} x what the stamps give",
            Evidence(text=text, source=str(rows.place), name=name, value=said * 1e3, unit="ms"),
            certain=False,
        )
        return
