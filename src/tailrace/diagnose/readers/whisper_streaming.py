"""What whisper_streaming prints: how far its text is behind the audio, by line.

* its log: `## last processed 62.50 s, now is 64.12, the latency is 1.62` (seconds of the session);
* its output: `emission_ms begin_ms end_ms text`, when a piece of text was emitted and which audio it is of.

Both are a session's audio that has come and audio that is in the text by then: the lag is the difference.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from tailrace.diagnose.observed import Clock, Observed, Place, Series, Understood
from tailrace.diagnose.readers.format import Format

__all__ = ["WHISPER_STREAMING"]

_NAME: Final = "whisper_streaming"
_LAG: Final = re.compile(
    r"last processed\s+(-?\d+(?:\.\d+)?)\s*s?,\s*now is\s+(\d+(?:\.\d+)?)\s*s?,\s*the latency is\s+(-?\d+(?:\.\d+)?)"
)
_TEXT: Final = re.compile(r"^\s*(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s+(\S.*)$")
_WORD: Final = re.compile(r"[^\W\d_]{2}")
LEAST: Final = 3


def _of_line(line: str) -> tuple[float, float] | None:
    """(audio that has come, audio that is in the text), seconds."""
    found = _LAG.search(line)
    if found is not None:
        return float(found[2]), float(found[1])
    text = _TEXT.match(line)
    if text is None or not _WORD.search(text[4]):
        return None
    emitted, begin, end = (float(text[at]) / 1e3 for at in (1, 2, 3))
    return (emitted, end) if begin < end <= emitted + 1.0 else None


def read_whisper(path: Path, name: str) -> Observed:
    """Two series over the age of the session (s): audio received, audio processed (ms)."""
    received, processed, lines = [], [], []
    total = 0
    examples: list[str] = []
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            total += 1
            pair = _of_line(raw)
            if pair is None:
                if len(examples) < 3:
                    examples.append(f"{number}: {raw.strip()[:80]}")
                continue
            received.append(pair[0])
            processed.append(pair[1])
            lines.append(number)
    at = np.array(received, dtype=np.float64)
    order = np.argsort(at, kind="stable")
    series = [
        Series(
            name=what,
            axis="session_age",
            clock=Clock.RELATIVE,
            at=at[order],
            values=1e3 * np.array(values, dtype=np.float64)[order],
            unit="ms",
            lines=np.array(lines, dtype=np.int64)[order],
            place=Place(name),
        )
        for what, values in (("audio_received", received), ("audio_processed", processed))
    ]
    return Observed(
        series=series,
        understood=[Understood(source=name, format=_NAME, understood=len(lines), total=total, examples=examples)],
    )


def _matches(head: str, name: str) -> bool:
    _ = name
    lines = [line for line in head.splitlines()[:400] if line.strip()]
    if sum(_LAG.search(line) is not None for line in lines) >= LEAST:
        return True
    told = [pair for line in lines if (pair := _of_line(line)) is not None]
    rising = all(a[0] <= b[0] for a, b in pairwise(told))
    return len(told) >= max(LEAST, round(0.8 * len(lines))) and rising


WHISPER_STREAMING: Final = Format(name=_NAME, matches=_matches, read=read_whisper)
"""The lag of a whisper_streaming session."""
