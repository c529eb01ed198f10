"""ASR_REDECODE_GROWTH: each partial decodes the whole utterance again, so the longer it is, the later they come."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar, Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.speech_evidence.lags import utterance_lags
from tailrace.diagnose.speech_evidence.redecode_in_series import Teeth, redecode_in_series
from tailrace.diagnose.speech_evidence.speech_on_arms import redecode_on_arms
from tailrace.diagnose.speech_evidence.stream import SpeechStream, speech_streams
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["RedecodeGrowth"]

SLOPE: Final = 0.03
"""Lag gained (s) for each second of the utterance."""
MOST: Final = 0.6
"""Of the utterances must grow."""
GAINED_S: Final = 0.1
_ADVICE: Final = (
    "Decode only what is new: keep the encoder's state, or commit words that stayed the same in two partials and cut "
    "the window there (15 s at most); send partials less often as an utterance grows."
)
_PRICE: Final = "Committed words are not corrected any more; fewer partials are later ones."


class RedecodeGrowth(Cause):
    """Lag rises within each utterance and falls back with the next."""

    code: ClassVar[str] = "ASR_REDECODE_GROWTH"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = (
        "partials of several utterances with the audio they speak of",
        "when the audio was received",
    )
    disproof: ClassVar[str] = "The lag does not fall back when a new utterance begins, or partials come in append mode."
    action: ClassVar[Action] = Action.FIX

    def observe(self, observed: Observed) -> Finding | None:
        """A saw-tooth of the lag, one tooth an utterance."""
        found = [one for stream in speech_streams(observed) if (one := self._of_stream(stream)) is not None]
        if found:
            return max(found, key=lambda one: one.explains_ms or 0.0)
        teeth = redecode_in_series(observed)
        return redecode_on_arms(self, observed) if teeth is None else self._of_teeth(teeth)

    def _of_teeth(self, teeth: Teeth) -> Finding:
        if teeth.buffer:
            return self._of_buffer(teeth)
        slope, gained, back = f"{teeth.slope * 1e3:.0f}", f"{teeth.gained_ms:.0f}", f"{teeth.back_ms:.0f}"
        return self.finding(
            statement=f"Within each utterance a partial takes longer and longer, by {slope} ms for each second of "
            f"audio ({gained} ms over an utterance), and with the next one it falls back by {back} ms: the whole "
            "utterance is decoded again for each partial.",
            evidence=[
                Evidence(
                    text=f"work on a partial grows by {slope} ms for each second of an utterance (median of {teeth.n} "
                    f"of {teeth.of} utterances)",
                    source=teeth.place,
                    name="slope",
                    value=round(teeth.slope * 1e3, 2),
                    unit="ms/s",
                ),
                Evidence(
                    text=f"{gained} ms gained over an utterance, {back} ms given back at the next",
                    source=teeth.place,
                    name="gained",
                    value=round(teeth.gained_ms, 1),
                    unit="ms",
                ),
            ],
            explains_ms=teeth.gained_ms,
            relation=f"{slope} ms/s within utterances; {back} ms fall at their ends",
            n=teeth.n,
            advice=_ADVICE,
            price=_PRICE,
            verify="tailrace diagnose after.csv  # the same series after the change: flat within an utterance",
            disproof_checked=[f"it falls back by {back} ms when an utterance ends"],
        )

    def _of_buffer(self, teeth: Teeth) -> Finding:
        slope, name = f"{teeth.slope * 1e3:.3g}", teeth.buffer.replace("_", " ")
        (short, quick), (long, slow) = teeth.first, teeth.last
        return self.finding(
            statement=f"The work on a chunk follows the audio that is still open, {slope} ms for each second of the "
            f"{name} ({quick:.0f} ms at {short:.3g} s, {slow:.0f} ms at {long:.3g} s), and falls back by "
            f"{teeth.back_ms:.0f} ms when that is cut: the whole buffer is decoded again at each step, and not the age "
            "of the session makes it slow.",
            evidence=[
                Evidence(
                    f"{quick:.0f} ms at {short:.3g} s of {name}, {slow:.0f} ms at {long:.3g} s", teeth.place, "work",
                    round(slow, 1), "ms",
                ),
                Evidence(f"{slope} ms a second of it", teeth.place, "slope", round(teeth.slope * 1e3, 2), "ms/s"),
                Evidence(
                    f"{teeth.back_ms:.0f} ms fall where it is cut (n = {teeth.n})", teeth.place, "back",
                    round(teeth.back_ms, 1), "ms",
                ),
            ],
            explains_ms=teeth.gained_ms,
            relation=f"({slow:.0f} - {quick:.0f}) ms / ({long:.3g} - {short:.3g}) s = "
            f"{(slow - quick) / max(long - short, 1e-9):.3g} ms a buffered second",
            n=teeth.n,
            advice=_ADVICE,
            price=_PRICE,
            verify="tailrace diagnose after.csv  # the same series after the change: flat along the buffer",
            disproof_checked=[f"it falls back by {teeth.back_ms:.0f} ms when the buffer is cut, later in the session"],
        )  # fmt: skip

    def _of_stream(self, stream: SpeechStream) -> Finding | None:
        every = utterance_lags(stream)
        lines = [one for one in every if one.line is not None and one.line.n >= 4]
        growing = [
            one
            for one in lines
            if one.line is not None
            and one.line.slope > SLOPE
            and one.line.grows
            and one.last_s - one.first_s > GAINED_S
        ]
        if len(growing) < 2 or len(growing) < MOST * len(lines):
            return None
        order = sorted(every, key=lambda one: one.begin)
        falls = [before.last_s - after.first_s for before, after in pairwise(order)]
        gained = float(np.median([one.last_s - one.first_s for one in growing]))
        back = float(np.median(falls))
        if back < 0.5 * gained:
            return None
        slope = float(np.median([one.line.slope for one in growing if one.line is not None]))
        anchored = bool(np.isfinite(stream.received_at(stream.end)).any())
        append = bool((stream.mode == "append").any())
        source = str(stream.place_of(0))
        missing = [] if anchored else ["when the audio was received (`kind: audio`)"]
        return self.finding(
            statement=f"Within each utterance the partials come later and later, by {slope * 1e3:.0f} ms for each "
            f"second of audio ({gained * 1e3:.0f} ms over an utterance), and with the next one the lag falls back by "
            f"{back * 1e3:.0f} ms: the whole utterance is decoded again for each partial.",
            evidence=[
                Evidence(
                    text=f"stream {stream.name}: lag grows by {slope * 1e3:.0f} ms for each second of an utterance "
                    f"(median of {len(growing)} of {len(lines)} utterances)",
                    source=source,
                    name="slope",
                    value=round(slope * 1e3, 2),
                    unit="ms/s",
                ),
                Evidence(
                    text=f"{gained * 1e3:.0f} ms gained over an utterance, {back * 1e3:.0f} ms given back at the next",
                    source=source,
                    name="gained",
                    value=round(gained * 1e3, 1),
                    unit="ms",
                ),
            ],
            explains_ms=gained * 1e3,
            relation=f"{slope * 1e3:.0f} ms/s within utterances; {back * 1e3:.0f} ms fall at their ends",
            n=len(growing),
            advice=_ADVICE,
            price=_PRICE,
            verify="tailrace diagnose events.jsonl",
            missing=missing,
            rivals=["ASR_LAG_GROWS: results are appended, so nothing seems to be decoded again"] if append else [],
            disproof_checked=[f"the lag falls back by {back * 1e3:.0f} ms when an utterance ends"],
        )
