"""AUDIO_RATE_MISMATCH: audio is read at another sample rate than it was made with."""

from __future__ import annotations

import re
from typing import ClassVar, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arms.measures import measures_of
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.speech_evidence.speech_on_arms import rate_on_arms
from tailrace.diagnose.speech_evidence.stream import speech_streams
from tailrace.diagnose.trend import trend
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["RateMismatch"]

RATES: Final = (8000.0, 16000.0, 22050.0, 24000.0, 32000.0, 44100.0, 48000.0)
NEAR: Final = 0.02
LONG_S: Final = 3.0
_RATE: Final = re.compile(r"sample_?rate|sampling_?rate|rate_hz|samplerate", re.IGNORECASE)


_FLOW: Final = re.compile(r"bytes?_?(?:per|a|/)_?s(?:ec|econd)?$|bytes_s$", re.IGNORECASE)
_COUNTED: Final = re.compile(r"audio_(?:s|seconds)_(?:counted|received|fed)|audio_counted_s", re.IGNORECASE)


_BYTES: Final = re.compile(r"\bbytes?\b", re.IGNORECASE)
_WALL: Final = (
    r"\bwall\b|elapsed|clock|real time|session (?:length|duration)|^(?:duration|window|seconds|t) ?s?$|wall seconds"
)
_HEARD: Final = (
    r"audio (?:s|seconds|seen|counted|received|fed|duration|length|time|position|reported|by)|"
    r"(?:server|reported|counted|billed|seconds of) audio|audio$"
)
_PACED: Final = re.compile(
    r"microphone|\bmic\b|\blive\b|\bpaced?\b|wall speed|real.?time|browser|phone call", re.IGNORECASE
)


_FILE: Final = re.compile(
    r"\b(?:mode|source|input|sender|kind)\w* (?:a )?(?:file|upload|offline|batch)\b", re.IGNORECASE
)


class _Ratio(NamedTuple):
    ratio: float
    """Audio seconds for each second of the clock."""
    seconds: float
    place: str
    what: str


class RateMismatch(Cause):
    """Audio time and wall time of a paced sender run apart by the ratio of two sample rates."""

    code: ClassVar[str] = "AUDIO_RATE_MISMATCH"
    stage: ClassVar[str] = "preprocess"
    needs: ClassVar[tuple[str, ...]] = (
        "received audio with positions and receive times, or samples fed over time",
        "the sample rates that client and recogniser are configured with",
    )
    disproof: ClassVar[str] = "The sender does not pace: a file sent as fast as it goes has any ratio."
    action: ClassVar[Action] = Action.FIX

    def observe(self, observed: Observed) -> Finding | None:
        """By how fast audio time runs; or by two rates that differ in the configuration."""
        rates = _rates(observed)
        counted = () if _at_once(observed) else (*_of_totals(observed, rates), *_of_clocks(observed))
        told = (*_of_bytes(observed, rates), *counted)
        seen_all = [*_of_streams(observed), *_of_samples(observed, rates), *told]
        for seen in seen_all:
            pair = _pair(seen.ratio)
            if pair is not None:
                again = [one for one in seen_all if one.place != seen.place and _agree(one.ratio, seen.ratio)]
                return self._found(seen, pair, rates, again)
        return rate_on_arms(self, observed)

    def _found(self, seen: _Ratio, pair: tuple[float, float], rates: dict[float, str], again: list[_Ratio]) -> Finding:
        fits = [(one, other) for one in rates for other in rates if abs(one / other / seen.ratio - 1.0) < NEAR]
        evidence = [
            Evidence(
                text=f"{seen.what}: audio time runs {seen.ratio:.3f} times as fast as the clock ({seen.ratio:.3g} x) "
                f"over {seen.seconds:.0f} s",
                source=seen.place,
                name="audio_per_wall",
                value=round(seen.ratio, 4),
            )
        ]
        if fits:
            made, read = fits[0]
            evidence += [
                Evidence(text=f"sample rate {made:.0f} Hz", source=rates[made], name="rate", value=made, unit="Hz"),
                Evidence(text=f"sample rate {read:.0f} Hz", source=rates[read], name="rate", value=read, unit="Hz"),
            ]
            words = f"{made:.0f} Hz audio is read as {read:.0f} Hz"  # both are configured
            relation = f"{made:.0f}/{read:.0f} = {made / read:.3f}; seen {seen.ratio:.3f}"
            missing = []
        else:
            made, read = pair
            evidence.append(
                Evidence(text=f"{made:.0f} Hz read as {read:.0f} Hz gives {made / read:.3f}", source=seen.place)
            )
            words = f"as if {made:.0f} Hz audio were read as {read:.0f} Hz"
            relation = f"{made:.0f}/{read:.0f} = {made / read:.3f}; seen {seen.ratio:.3f}"
            missing = ["the sample rates that the client and the recogniser are configured with"]
            evidence += [
                Evidence(f"configured sample rate {rate:.0f} Hz", place or "settings", "rate", rate, "Hz")
                for rate, place in rates.items()
                if rate in pair
            ]
            if read in rates:
                words = f"as {made:.0f} Hz audio read as the {read:.0f} Hz that are configured does"
                # A second measure of the same, such as the bytes beside the positions, is the rate that was sent.
                missing = [] if again else [f"the sample rate of what the client sends: {made:.0f} Hz would explain it"]
        evidence += [
            Evidence(f"{one.what}: {one.ratio:.3f} of the configured rate as well", one.place, "ratio_again", one.ratio)
            for one in again[:2]
        ]
        return self.finding(
            statement=f"Audio time runs {seen.ratio:.3f} times as fast as the clock: {words}. Every position, lag "
            "and RTF is off by that factor, and recognition suffers.",
            evidence=evidence,
            explains_ms=None,
            relation=relation,
            n=1,
            advice="State the sample rate on both sides, or resample before sending; check bytes a second against it: "
            "PCM16 mono has 2 bytes a sample.",
            price="Resampling costs some CPU on one side.",
            verify="tailrace diagnose events.jsonl",
            missing=missing,
            disproof_checked=["the ratio held over the whole stream, as a paced sender's does"],
        )


def _agree(one: float, other: float) -> bool:
    return abs(one / other - 1.0) < NEAR


def _of_streams(observed: Observed) -> list[_Ratio]:
    out = []
    for stream in speech_streams(observed):
        chosen = np.flatnonzero(stream.audio & np.isfinite(stream.end))
        if chosen.size < 5:
            continue
        line = trend(stream.at[chosen], stream.end[chosen])
        took = float(np.ptp(stream.at[chosen]))
        if line is None or took < LONG_S or line.slope <= 0 or line.high - line.low > 2 * NEAR * line.slope:
            continue
        out.append(_Ratio(line.slope, took, str(stream.place_of(int(chosen[0]))), f"stream {stream.name}"))
    return out


def _of_samples(observed: Observed, rates: dict[float, str]) -> list[_Ratio]:
    """Samples fed over a session's age, against a configured rate."""
    out = []
    for name in ("samples_fed", "samples"):
        for series in observed.of_series(name):
            line = trend(series.at, series.values) if series.axis in {"time", "session_age"} else None
            if line is None or float(np.ptp(series.at)) < LONG_S or line.slope <= 0:
                continue
            if line.high - line.low > 2 * NEAR * line.slope:
                continue
            seconds, place = float(np.ptp(series.at)), str(series.place)
            out += [_Ratio(line.slope / rate, seconds, place, "samples fed") for rate in rates]
    return out


def _of_bytes(observed: Observed, rates: dict[float, str]) -> list[_Ratio]:
    """Bytes a second of PCM16 mono (2 bytes a sample) against a configured rate; or seconds counted against the clock.

    Stated figures are of a paced sender only if somebody says over how long: without that nothing is concluded.
    """
    seconds = observed.number("wall_s", "duration_s", "window_s")
    if seconds is None or seconds < LONG_S:
        return []
    out = []
    flow = next((one for one in observed.settings if _FLOW.search(one.name) and one.number), None)
    if flow is not None and flow.number is not None:
        words = "bytes a second"
        out += [_Ratio(flow.number / (2.0 * rate), seconds, str(flow.place), words) for rate in rates]
    counted = next((one for one in observed.settings if _COUNTED.search(one.name) and one.number), None)
    if not out and counted is not None and counted.number is not None:
        out.append(_Ratio(counted.number / seconds, seconds, str(counted.place), "audio counted"))
    return out


def _words(observed: Observed) -> str:
    return " ".join([*observed.notes, *(f"{one.name} {one.value}" for one in observed.settings)])


def _at_once(observed: Observed) -> bool:
    """Whether it is said that a file is sent, and nothing says that it is paced: then the clock tells no rate."""
    words = _words(observed)
    return _FILE.search(words) is not None and _PACED.search(words) is None


def _of_totals(observed: Observed, rates: dict[float, str]) -> list[_Ratio]:
    """Bytes in all and the seconds that they took, stated, in a row or in a series: PCM16 mono has 2 bytes a sample."""
    out = []
    for series in observed.series:
        if "byte" not in series.name or series.axis not in {"time", "session_age"}:
            continue
        line = trend(series.at, series.values)
        if line is None or not _BYTES.search(series.name.replace("_", " ")) or float(np.ptp(series.at)) < LONG_S:
            continue
        if line.slope > 0 and line.high - line.low <= 2 * NEAR * line.slope:
            what = f"{line.slope:.0f} bytes a second of 16-bit mono audio"
            out += [
                _Ratio(line.slope / (2.0 * rate), float(np.ptp(series.at)), str(series.place), what) for rate in rates
            ]
    for group in measures_of(observed):
        count, took = group.find(_BYTES.pattern, r"per|/|rate|chunk|frame"), group.ms(_WALL, r"audio|chunk|frame|per")
        seconds = (took.ms or 0.0) / 1e3 if took is not None else 0.0
        if count is None or seconds < LONG_S:
            continue
        own = group.find(
            r"(?:configured|server|declared|session|expected)?.*(?:sample |sampling )?rate(?: hz| khz)?$", "byte"
        )
        known = [_hertz(own.value)] if own is not None and _hertz(own.value) else list(rates)
        pace = count.value / seconds
        what = f"{count.value:.0f} bytes / {seconds:g} s = {pace:.0f} bytes a second of 16-bit mono audio"
        out += [_Ratio(pace / (2.0 * rate), seconds, count.place, what) for rate in known]
    return out


def _of_clocks(observed: Observed) -> list[_Ratio]:
    """Seconds of audio that a server counted against the clock's, of a sender that is known to pace, or beside a rate:
    a file that is sent as fast as it goes seldom goes at the ratio of two rates that are in use.
    """
    paced = bool(_PACED.search(_words(observed))) or len(_rates(observed)) > 0
    out = []
    for series in observed.of_series("audio_received"):
        scale = 1e-3 if series.unit == "ms" else 1.0
        line = trend(series.at, series.values * scale) if series.axis in {"time", "session_age"} else None
        if line is None or not paced or float(np.ptp(series.at)) < LONG_S or line.slope <= 1.0:
            continue
        if line.high - line.low <= 2 * NEAR * line.slope:
            out.append(_Ratio(line.slope, float(np.ptp(series.at)), str(series.place), "audio received"))
    for group in measures_of(observed):
        audio, wall = group.ms(_HEARD, r"per|chunk|first|lag|behind|processed"), group.ms(_WALL, r"audio|per|chunk")
        pair = group.find(r"client.*rate|source.*rate|sent.*rate|mic.*rate") is not None
        if audio is None or wall is None or audio is wall or not wall.ms or (wall.ms or 0.0) < LONG_S * 1e3:
            continue
        if paced or pair:
            out.append(
                _Ratio((audio.ms or 0.0) / wall.ms, wall.ms / 1e3, audio.place, f"{audio.words} against {wall.words}")
            )
    return out


def _hertz(value: float) -> float:
    value = value * 1e3 if value < 1e3 else value
    return value if 4000.0 <= value <= 192_000.0 else 0.0


def _pair(ratio: float) -> tuple[float, float] | None:
    """(rate it was made with, rate it is read with) whose ratio this is; the commonest pair first."""
    if abs(ratio - 1.0) < 2 * NEAR:
        return None
    common = ((24000.0, 16000.0), (16000.0, 24000.0), (48000.0, 16000.0), (16000.0, 8000.0), (8000.0, 16000.0))
    every = [(one, other) for one in RATES for other in RATES if one != other]
    return next((pair for pair in (*common, *every) if abs(pair[0] / pair[1] / ratio - 1.0) < NEAR), None)


def _rates(observed: Observed) -> dict[float, str]:
    """Configured sample rate (Hz) -> where it stands."""
    out: dict[float, str] = {}
    for setting in observed.settings:
        value = setting.number
        if value is None or not _RATE.search(setting.name):
            continue
        value = value * 1000.0 if value < 1000.0 else value
        if 4000.0 <= value <= 192_000.0:
            out.setdefault(value, str(setting.place))
    return out
