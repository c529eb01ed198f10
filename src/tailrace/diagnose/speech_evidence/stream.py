"""One stream of speech events: audio that came in, text that came out, on one clock."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Observed, Place, Rows
from tailrace.stats.intervals import union_length

__all__ = ["LOUD_DBFS", "SpeechStream", "speech_streams"]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

LOUD_DBFS: Final = -45.0
"""Audio at least this loud (RMS) is sound. Whether it is speech only a voice detector knows."""
_NEAR_S: Final = 2.0
"""The newest audio tells whether somebody speaks for this long."""


class SpeechStream(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Events in the order in which they were received; arrays have shape (n,)."""

    name: str
    at: Floats
    """Receive time of each event (s)."""
    kind: NDArray[np.object_]
    text: NDArray[np.object_]
    utterance: NDArray[np.object_]
    start: Floats
    """Audio position of the beginning (s); NaN where the event has none."""
    end: Floats
    voiced: Floats
    """1 speech, 0 none, NaN not said; of audio."""
    level: Floats
    """RMS of audio (dBFS)."""
    stamp: Floats
    """What the event itself calls its time (s), where it carries a stamp besides its receive time."""
    turn_final: Floats
    mode: NDArray[np.object_]
    lines: NDArray[np.int64] | None
    source: str

    audio: Flags
    """Which events are received audio."""
    deltas: Flags
    """Which are results, empty or not."""
    words: Flags
    """Which are results with text in them."""
    sounding: Flags
    """Which are audio that holds speech, or, where nobody detected speech, sound."""

    @property
    def knows_voice(self) -> bool:
        """Whether a voice detector's word came with the audio."""
        return bool(np.isfinite(self.voiced[self.audio]).any())

    @property
    def knows_level(self) -> bool:
        """Whether the audio's loudness came with it."""
        return bool(np.isfinite(self.level[self.audio]).any())

    def sounding_s(self, after: float, until: float) -> float:
        """Seconds of such audio received in (after, until], a position that came twice counted once."""
        chosen = self.sounding & (self.at > after) & (self.at <= until)
        return _covered(self.start[chosen], self.end[chosen])

    def loudest(self, after: float, until: float) -> float | None:
        """The loudest audio (dBFS) received in (after, until]."""
        chosen = self.audio & (self.at > after) & (self.at <= until) & np.isfinite(self.level)
        return float(self.level[chosen].max()) if chosen.any() else None

    def speaking_at(self, when: Floats) -> Flags:
        """Whether the newest audio at each of these times holds speech (or sound)."""
        chosen = np.flatnonzero(self.audio)
        if not chosen.size:
            return np.zeros(len(when), dtype=bool)
        place = np.searchsorted(self.at[chosen], when, side="right") - 1
        newest = chosen[np.maximum(place, 0)]
        fresh = (place >= 0) & (when - self.at[newest] <= _NEAR_S)
        return np.asarray(fresh & self.sounding[newest], dtype=bool)

    def received_at(self, position: Floats) -> Floats:
        """When the audio at these positions (s) had come in; NaN where no event tells."""
        chosen = np.flatnonzero(self.audio & np.isfinite(self.end))
        out = np.full(len(position), np.nan)
        if not chosen.size:
            return out
        order = chosen[np.argsort(self.end[chosen], kind="stable")]
        place = np.searchsorted(self.end[order], position - 1e-9, side="left")
        known = np.isfinite(position) & (place < order.size)
        out[known] = self.at[order[place[known]]]
        return out

    def place_of(self, index: int) -> Place:
        """Where an event stands."""
        return Place(self.source, int(self.lines[index]) if self.lines is not None else 0)


def _covered(start: Floats, end: Floats) -> float:
    known = np.isfinite(start) & np.isfinite(end) & (end > start)
    return union_length(zip(start[known].tolist(), end[known].tolist(), strict=True))


def speech_streams(observed: Observed) -> list[SpeechStream]:
    """Every stream in the evidence, in the order in which they first appear."""
    return [stream for rows in observed.table("speech") for stream in _of_rows(rows)]


def _of_rows(rows: Rows) -> list[SpeechStream]:
    names = np.array(rows.texts("stream"), dtype=object)
    at = rows.numbers("t_recv")
    columns = {
        name: rows.numbers(name) for name in ("audio_start", "audio_end", "voiced", "rms", "stamp", "turn_final")
    }
    texts = {name: np.array(rows.texts(name), dtype=object) for name in ("kind", "text", "utterance", "mode")}
    out = []
    for name in dict.fromkeys(names.tolist()):
        index = np.flatnonzero((names == name) & np.isfinite(at))
        index = index[np.argsort(at[index], kind="stable")]
        if not index.size:
            continue
        kind, voiced, level = texts["kind"][index], columns["voiced"][index], columns["rms"][index]
        audio = np.asarray(kind == "audio", dtype=bool)
        deltas = np.asarray((kind == "partial") | (kind == "final"), dtype=bool)
        filled = np.fromiter((bool(str(text).strip()) for text in texts["text"][index]), bool, index.size)
        heard = voiced > 0.5 if np.isfinite(voiced[audio]).any() else level >= LOUD_DBFS
        out.append(
            SpeechStream(
                name=str(name),
                audio=audio,
                deltas=deltas,
                words=deltas & filled,
                sounding=np.asarray(audio & heard, dtype=bool),
                at=at[index],
                kind=kind,
                text=texts["text"][index],
                utterance=texts["utterance"][index],
                mode=texts["mode"][index],
                start=columns["audio_start"][index],
                end=columns["audio_end"][index],
                voiced=voiced,
                level=level,
                stamp=columns["stamp"][index],
                turn_final=columns["turn_final"][index],
                lines=rows.lines[index] if rows.lines is not None else None,
                source=rows.place.source,
            )
        )
    return out
