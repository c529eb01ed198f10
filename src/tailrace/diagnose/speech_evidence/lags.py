"""How far each result of a stream is behind the audio that it speaks of, along the session and along its utterances."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Observed
from tailrace.diagnose.speech_evidence.stream import SpeechStream, speech_streams
from tailrace.diagnose.trend import Trend, trend

__all__ = ["StreamLag", "UtteranceLag", "result_lags", "stream_lags", "utterance_lags"]

Floats = NDArray[np.float64]


class UtteranceLag(NamedTuple):
    """The lag of one utterance's results."""

    name: str
    begin: float
    """Receive time of its first result (s)."""
    first_s: float
    last_s: float
    line: Trend | None
    """Lag (s) on the audio since the utterance's beginning (s)."""


class StreamLag(NamedTuple):
    """The lag of a stream along its session: of the first result of each utterance where there are several."""

    stream: str
    at: Floats
    values: Floats
    line: Trend
    anchored: bool
    """Measured from when the audio was received; otherwise from its position, as if the clock had begun with it."""
    utterances: int
    place: str

    @property
    def first_s(self) -> float:
        """The first lag (s)."""
        return float(self.values[0])

    @property
    def last_s(self) -> float:
        """The last one (s)."""
        return float(self.values[-1])


def result_lags(stream: SpeechStream) -> tuple[NDArray[np.int64], Floats, bool]:
    """(events, their lag in s, whether it counts from the receipt of the audio) of the results with text."""
    chosen = np.flatnonzero(stream.words & np.isfinite(stream.end))
    received = stream.received_at(stream.end[chosen])
    anchored = bool(np.isfinite(received).any())
    lag = stream.at[chosen] - (received if anchored else stream.end[chosen])
    known = np.isfinite(lag)
    return chosen[known], lag[known], anchored


def utterance_lags(stream: SpeechStream) -> list[UtteranceLag]:
    """Each utterance's lag; an utterance is what carries one name, or what a final ends."""
    chosen, lag, _ = result_lags(stream)
    if not chosen.size:
        return []
    groups: dict[str, list[int]] = {}
    number = 0
    named = len({str(name) for name in stream.utterance[chosen]} - {""}) > 1
    for place, index in enumerate(chosen):
        key = str(stream.utterance[index]) if named else str(number)
        groups.setdefault(key, []).append(place)
        if stream.kind[index] == "final":
            number += 1
    out = []
    for name, places in groups.items():
        where = np.array(places)
        index = chosen[where]
        begin = stream.start[index[0]]
        audio = stream.end[index] - (begin if np.isfinite(begin) else stream.end[index[0]])
        out.append(
            UtteranceLag(
                name,
                float(stream.at[index[0]]),
                float(lag[where[0]]),
                float(lag[where[-1]]),
                trend(audio, lag[where]),
            )
        )
    return out


def stream_lags(observed: Observed) -> list[StreamLag]:
    """Streams whose results say which audio they speak of."""
    out = []
    for stream in speech_streams(observed):
        chosen, lag, anchored = result_lags(stream)
        utterances = utterance_lags(stream)
        if len(utterances) >= 3:
            at = np.array([one.begin for one in utterances])
            lag = np.array([one.first_s for one in utterances])
        else:
            at = stream.at[chosen]
        line = trend(at, lag)
        if line is not None:
            place = str(stream.place_of(int(chosen[-1])))
            out.append(StreamLag(stream.name, at, lag, line, anchored, len(utterances), place))
    return out
