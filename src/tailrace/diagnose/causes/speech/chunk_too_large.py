"""ASR_CHUNK_TOO_LARGE: words wait for the end of the audio chunk that holds them."""

from __future__ import annotations

import re
from typing import ClassVar, Final, NamedTuple

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.diagnose.speech_evidence.stream import SpeechStream, speech_streams
from tailrace.model.finding import Evidence, Finding

__all__ = ["ChunkTooLarge"]

LARGE_MS: Final = 250.0
SHARE: Final = 0.4
"""Of a word's latency that its wait for the chunk must make."""
_CHUNK: Final = re.compile(r"chunk|frame", re.IGNORECASE)
_SIZE: Final = re.compile(r"chunk_?(?:ms|duration|size_ms|length)|frame_?(?:ms|duration)", re.IGNORECASE)


_FIRST: Final = re.compile(r"first_?(?:word|partial|text)|word_latency", re.IGNORECASE)


class _Waits(NamedTuple):
    chunk_ms: float
    latency_ms: float
    n: int
    what: str
    chunk_place: str
    place: str


class ChunkTooLarge(Cause):
    """The mean wait for the chunk's end, half its length, is a large part of what users wait for a word."""

    code: ClassVar[str] = "ASR_CHUNK_TOO_LARGE"
    stage: ClassVar[str] = "ingress"
    needs: ClassVar[tuple[str, ...]] = ("length of the audio chunks", "latency of first words or partials")
    disproof: ClassVar[str] = "The latency stays when chunks are made shorter."

    def observe(self, observed: Observed) -> Finding | None:
        """Chunks as they were received against the latency of words; or two arms with other chunks."""
        for waits in (*_of_streams(speech_streams(observed)), *_of_arms(observed), *_of_settings(observed)):
            if waits.chunk_ms >= LARGE_MS and waits.chunk_ms / 2 >= SHARE * waits.latency_ms:
                return self._found(waits)
        return None

    def _found(self, waits: _Waits) -> Finding:
        half = waits.chunk_ms / 2
        return self.finding(
            statement=f"Audio comes in chunks of {waits.chunk_ms:.0f} ms, so a word waits {half:.0f} ms for its "
            f"chunk on average, and {waits.chunk_ms:.0f} ms at most, of {waits.latency_ms:.0f} ms {waits.what}.",
            evidence=[
                Evidence(
                    text=f"audio chunks of {waits.chunk_ms:.0f} ms",
                    source=waits.chunk_place,
                    name="chunk",
                    value=round(waits.chunk_ms, 1),
                    unit="ms",
                ),
                Evidence(
                    text=f"{waits.what} {waits.latency_ms:.0f} ms (n = {waits.n})",
                    source=waits.place,
                    name="latency",
                    value=round(waits.latency_ms, 1),
                    unit="ms",
                ),
                Evidence(
                    text=f"mean wait for the end of a chunk {half:.0f} ms",
                    source=waits.chunk_place,
                    name="chunk_wait",
                    value=round(half, 1),
                    unit="ms",
                ),
            ],
            explains_ms=half,
            relation=f"{waits.chunk_ms:.0f}/2 = {half:.0f} ms; {half:.0f}/{waits.latency_ms:.0f} = "
            f"{half / waits.latency_ms:.0%} of the latency",
            n=waits.n,
            advice="Send chunks of 60 to 100 ms (20 ms frames for telephony); let the recogniser collect its own "
            "window.",
            price="More messages, and more encoder calls where the engine runs one a chunk: watch its RTF.",
            verify="tailrace diagnose events.jsonl",
        )


def _of_streams(streams: list[SpeechStream]) -> list[_Waits]:
    out = []
    for stream in streams:
        length = stream.end[stream.audio] - stream.start[stream.audio]
        length = length[np.isfinite(length) & (length > 0)]
        words = np.flatnonzero(stream.words & np.isfinite(stream.end))
        if length.size < 3 or words.size < 3:
            continue
        # The audio's own clock begins when its first sample was spoken: before its first chunk was received whole.
        late = stream.at[stream.audio] - stream.end[stream.audio]
        began = float(np.nanmin(late))
        latency = stream.at[words] - stream.end[words] - began
        # `end` of a result is where its window ends, not where a word does; the word is half a chunk older on average.
        chunk = float(np.median(length)) * 1e3
        perceived = float(np.median(latency)) * 1e3 + chunk / 2
        if perceived > 0:
            place = str(stream.place_of(int(words[0])))
            first = str(stream.place_of(int(np.flatnonzero(stream.audio)[0])))
            out.append(_Waits(chunk, perceived, int(words.size), "from a word's end to its text", first, place))
    return out


def _of_arms(observed: Observed) -> list[_Waits]:
    """Two arms whose chunks differ, and whose first words follow them."""
    known = []
    for arm in observed.arms:
        chunk = next((_ms(key, value) for key, value in arm.keys.items() if _CHUNK.search(key)), None)
        chunk = chunk if chunk is not None else arm.get("chunk")
        latency = arm.get("first_partial", "p50", "mean", "p95", "")
        if chunk is not None and latency is not None:
            known.append((chunk, latency, str(arm.place)))
    if len(known) < 2:
        return []
    short, long = min(known), max(known)
    moved = long[1] - short[1]
    if long[0] <= short[0] or moved < 0.3 * (long[0] - short[0]):
        return []  # shorter chunks did not help: that is the disproof
    return [_Waits(long[0], long[1], len(known), "to the first words", long[2], long[2])]


def _of_settings(observed: Observed) -> list[_Waits]:
    setting = next((one for one in observed.settings if _SIZE.search(one.name) and one.number), None)
    if setting is None or setting.number is None:
        return []
    chunk = _ms(setting.name, setting.number, setting.unit)
    out = []
    for arm in observed.arms:
        latency = arm.get("first_partial", "p50", "mean", "")
        if chunk is not None and latency is not None:
            out.append(_Waits(chunk, latency, 1, "to the first words", str(setting.place), str(arm.place)))
    stated = next((one for one in observed.settings if _FIRST.search(one.name) and one.number), None)
    if not out and chunk is not None and stated is not None and stated.number is not None:
        latency = in_unit(stated.number, stated.unit, "ms") if stated.unit else None
        if latency is not None and latency >= chunk / 2:
            out.append(_Waits(chunk, latency, 1, "to the first words", str(setting.place), str(stated.place)))
    return out


def _ms(name: str, value: float | str, unit: str = "") -> float | None:
    if isinstance(value, str):
        return None
    told = unit or ("s" if name.lower().rstrip(")").endswith(("_s", "(s", "seconds")) else "ms")
    return in_unit(value, told, "ms")
