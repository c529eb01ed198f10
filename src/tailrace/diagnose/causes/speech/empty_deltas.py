"""ASR_EMPTY_DELTAS: results come on time and are empty while somebody speaks."""

from __future__ import annotations

import re
from typing import ClassVar, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arms.asked import told
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.speech.silent_hang import is_speech
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.speech_evidence.speech_stated import empty_stated
from tailrace.diagnose.speech_evidence.stream import SpeechStream, speech_streams
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["EmptyDeltas"]

_BLANK: Final = re.compile(r"deltas?\b.{0,30}\b(?:empty|blank)|(?:empty|blank) (?:deltas?|tokens?)", re.IGNORECASE)
_ADVICE: Final = (
    "Alarm on the share of empty deltas during speech, not on gaps. Restart the stream's decoding state (a new session "
    "with the audio since the last word) when the share stays at 1 for seconds."
)
_PRICE: Final = "A restarted session loses its context, and decodes the audio again."
LEAST: Final = 8
VOICED_S: Final = 2.0
"""Blanks stand between words, too; in so much speech there is a word."""
EVEN: Final = 3.0
"""The longest gap of a healthy stream of deltas is at most so many times its median."""


class _Run(NamedTuple):
    stream: SpeechStream
    n: int
    first: float
    last: float
    voiced_s: float
    typical_gap_s: float
    longest_gap_s: float
    event: int


class EmptyDeltas(Cause):
    """The stream looks healthy by its gaps, and says nothing."""

    code: ClassVar[str] = "ASR_EMPTY_DELTAS"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = (
        "deltas with their text (or that it is empty) and receive times",
        "received audio with a voice detector's word (`kind: audio`, `voiced`)",
    )
    disproof: ClassVar[str] = "The audio was silent while the empty deltas came."
    action: ClassVar[Action] = Action.FIX

    def observe(self, observed: Observed) -> Finding | None:
        """The longest run of empty deltas over speech."""
        streams = speech_streams(observed)
        runs = [run for stream in streams if (run := _longest(stream)) is not None]
        if runs:
            return self._found(max(runs, key=lambda run: run.voiced_s))
        if any(_blank(stream) for stream in streams):
            return self.insufficient(
                "the received audio with a voice detector's word (`kind: audio`, `voiced`): nearly all deltas are "
                "empty, and in silence that is right"
            )
        return empty_stated(self, observed) or self._of_form(observed)

    def _of_form(self, observed: Observed) -> Finding | None:
        """A form that calls the deltas blank."""
        blank = next((one for one in told(observed) if _BLANK.search(f"{one.name} {one.value}")), None)
        if blank is None or not is_speech(observed):
            return None
        rate = observed.setting("tok_s", "deltas_per_s", "output_tok_s")
        rated = f" at {rate.number:g} a second" if rate is not None and rate.number else ""
        evidence = [Evidence(f"{blank.name}: {blank.value}", str(blank.place) or "form", blank.name)]
        if rate is not None and rated:
            evidence.append(Evidence(f"{rate.name} {rate.number:g}", str(rate.place) or "form", rate.name, rate.number))
        return self.finding(
            statement=f"The deltas come{rated} and are empty: by its gaps the stream looks healthy.",
            evidence=evidence,
            explains_ms=None,
            relation=f"{blank.name}: {blank.value}",
            n=1,
            advice=_ADVICE,
            price=_PRICE,
            verify="tailrace diagnose events.jsonl",
            missing=["the events with voiced audio (`kind: audio`): whether somebody spoke while they were empty"],
        )

    def _found(self, run: _Run) -> Finding:
        stream = run.stream
        rate = (run.n - 1) / (run.last - run.first) if run.last > run.first else float(run.n)
        deltas = stream.deltas & stream.speaking_at(stream.at)
        total = int(deltas.sum())
        empty = int((deltas & ~stream.words).sum())
        source = str(stream.place_of(run.event))
        voice = "voiced" if stream.knows_voice else "audible"
        even = run.longest_gap_s <= EVEN * run.typical_gap_s
        gaps = f"gap between deltas: median {run.typical_gap_s * 1e3:.0f} ms, longest {run.longest_gap_s * 1e3:.0f} ms"
        missing = [] if stream.knows_voice else ["a voice detector's word beside the audio (`voiced`)"]
        if not even:
            missing.append("a stretch in which deltas come evenly: here they stutter as well")
        return self.finding(
            statement=f"{run.n} deltas in a row came empty at {rate:.1f} a second over {run.voiced_s:.1f} s of {voice} "
            f"speech ({empty} of {total} deltas during speech are blank), with gaps of {run.typical_gap_s * 1e3:.0f} "
            "ms: by its gaps the stream looks healthy.",
            evidence=[
                Evidence(
                    text=f"stream {stream.name}: {run.n} empty deltas in a row, {rate:.1f} a second",
                    source=source,
                    name="empty_deltas_per_s",
                    value=round(rate, 2),
                    unit="1/s",
                ),
                Evidence(
                    text=f"{run.voiced_s:.1f} s of {voice} speech were received meanwhile",
                    source=source,
                    name="voiced_audio",
                    value=round(run.voiced_s, 3),
                    unit="s",
                ),
                Evidence(
                    text=f"{empty} of {total} deltas during speech are empty",
                    source=source,
                    name="empty_delta_ratio",
                    value=round(empty / total, 4) if total else None,
                ),
                Evidence(
                    text=gaps, source=source, name="delta_gap", value=round(run.typical_gap_s * 1e3, 1), unit="ms"
                ),
            ],
            explains_ms=(run.last - run.first) * 1e3,
            relation=f"{empty}/{total} = {empty / max(total, 1):.0%} empty during speech; {run.n - 1} deltas / "
            f"{run.last - run.first:.2f} s = {rate:.1f} a second",
            n=total,
            advice=_ADVICE,
            price=_PRICE,
            verify="tailrace diagnose events.jsonl",
            missing=missing,
            disproof_checked=[f"{run.voiced_s:.1f} s of the audio meanwhile was {voice}", gaps],
        )


def _longest(stream: SpeechStream) -> _Run | None:
    """The run of empty deltas that covers the most speech; deltas outside of speech neither end nor lengthen it."""
    if not (stream.knows_voice or stream.knows_level):
        return None
    filled = stream.words
    empty = np.flatnonzero(stream.deltas & ~filled & stream.speaking_at(stream.at))
    # A result with text ends a run, wherever it comes: how many came before tells which run it is.
    before = np.searchsorted(stream.at[filled], stream.at[empty])
    runs = np.split(empty, np.flatnonzero(np.diff(before)) + 1)
    best: _Run | None = None
    for run in runs:
        if run.size < LEAST:
            continue
        at = stream.at[run]
        gaps = np.diff(at)
        typical = float(np.median(gaps))
        voiced = stream.sounding_s(float(at[0]) - max(typical, 1e-6) - 1e-9, float(at[-1]))
        if voiced >= VOICED_S and (best is None or voiced > best.voiced_s):
            best = _Run(
                stream, int(run.size), float(at[0]), float(at[-1]), voiced, typical, float(gaps.max()), int(run[0])
            )
    return best


def _blank(stream: SpeechStream) -> bool:
    """Whether nearly all results are empty, and nothing is known of the audio."""
    total = int(stream.deltas.sum())
    empty = total - int(stream.words.sum())
    return not (stream.knows_voice or stream.knows_level) and empty >= LEAST and empty >= 0.9 * total
