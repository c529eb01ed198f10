"""Speech numbers that cannot be right: delays always 0 or negative, and arrival taken for the time of a word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.observed import Observed
from tailrace.diagnose.speech_evidence.stream import SpeechStream, speech_streams
from tailrace.diagnose.speech_evidence.turns import Turns, turns_of
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["wrong_speech_stamps"]

NOTHING_MS: Final = 1.0
LEAST: Final = 3
SAME_S: Final = 0.02
"""A stamp that follows the receive time this closely is the receive time."""
APART_S: Final = 0.5
NEGATIVE_SHARE: Final = 0.2
_ADVICE: Final = (
    "Anchor the delay on the end of the speech in the audio (the payload's word times, or the voice detector's stamp "
    "taken when the audio was received), not on the arrival of the message; drop the values that were read so far and "
    "count them."
)


def wrong_speech_stamps(cause: Cause, observed: Observed) -> Finding | None:
    """METRIC_BUG of speech, if there is any."""
    for turns in turns_of(observed):
        found = _always_zero(cause, turns) or _stopped_first(cause, turns) or _negative(cause, turns)
        if found is not None:
            return found
    early = [one for stream in speech_streams(observed) if (one := _before_its_audio(cause, stream)) is not None]
    if early:
        return max(early, key=lambda one: one.n)
    found_in = [one for stream in speech_streams(observed) if (one := _arrival(cause, stream)) is not None]
    return max(found_in, key=lambda one: one.n) if found_in else None


def _always_zero(cause: Cause, turns: Turns) -> Finding | None:
    for column, words in (("transcription_delay", "transcription delay"), ("end_of_turn", "end-of-turn delay")):
        values = turns.get(column)
        known = values[np.isfinite(values)]
        if not known.size or bool((np.abs(known) > NOTHING_MS).any()):
            continue
        n = int(known.size)
        source = str(turns.place_of(0))
        truth = turns.get("final_recv") - turns.get("speech_end")
        truth = truth[np.isfinite(truth)]
        evidence = [
            Evidence(text=f"{words} is 0.0 for all {n} turns", source=source, name=column, value=0.0, unit="ms")
        ]
        missing = [] if n >= LEAST else [f"more turns: {n} zero{'s' if n != 1 else ''} may be chance"]
        second, relation, checked = "", f"{words} = 0.0 in {n} of {n} turns", []
        if truth.size and float(np.median(truth)) > NOTHING_MS:
            middle = float(np.median(truth)) / 1e3
            evidence.append(
                Evidence(
                    text=f"finals were received {middle:.2f} s after the end of speech (median; "
                    f"{truth.min() / 1e3:.2f} to {truth.max() / 1e3:.2f} s)",
                    source=source,
                    name="final_received",
                    value=round(middle * 1e3, 3),
                    unit="ms",
                )
            )
            second = f"; by the other stamps it is {middle:.2f} s"
            relation += f"; received - end of speech = {middle:.2f} s, not 0.0"
            checked.append(f"the second pair of stamps says {middle:.2f} s")
        elif n < LEAST:
            return None
        return cause.finding(
            statement=f"The {words} is 0.0 for all {n} turns, which is impossible{second}: its anchor is the arrival "
            "of the message, not the end of the speech.",
            evidence=evidence,
            explains_ms=None,
            relation=relation,
            n=n,
            advice=_ADVICE,
            price="Numbers from before and after the fix cannot be compared.",
            verify="tailrace diagnose turns.csv",
            missing=missing,
            disproof_checked=checked,
        )
    return None


def _stopped_first(cause: Cause, turns: Turns) -> Finding | None:
    """A speech that stopped before it started: whatever is counted from its stop counts from another turn's."""
    spans = turns.get("speech_span")
    wrong = np.flatnonzero(spans < -NOTHING_MS)
    if not wrong.size:
        return None
    row = int(wrong[int(np.argmin(spans[wrong]))])
    n, behind = int(np.isfinite(spans).sum()), -float(spans[row]) / 1e3
    source = str(turns.place_of(row))
    evidence = [
        Evidence(
            text=f"turn {turns.names[row]}: the speech stopped {behind:.2f} s before it started",
            source=source,
            name="speech_span",
            value=round(float(spans[row]), 3),
            unit="ms",
        ),
        Evidence(text=f"{wrong.size} of {n} turns stop before they start", source=source, name="n", value=float(n)),
    ]
    delay = next((one for one in ("transcription_delay", "end_of_turn") if np.isfinite(turns.get(one)[row])), "")
    said = ""
    if delay:
        value = float(turns.get(delay)[row]) / 1e3
        words = delay.replace("_", " ")
        said = f"; the {words} of {value:.2f} s is counted from that stop and is no delay that anybody felt"
        evidence.append(
            Evidence(
                text=f"turn {turns.names[row]}: {words} {value:.2f} s", source=source, name=delay,
                value=round(value * 1e3, 3), unit="ms",
            )
        )  # fmt: skip
    return cause.finding(
        statement=f"In {wrong.size} of {n} turns the speech stopped {behind:.2f} s before it started, which is "
        f"impossible{said}: the stop belongs to an earlier turn.",
        evidence=evidence,
        explains_ms=None,
        relation=f"stop - start = -{behind:.2f} s < 0",
        n=n,
        advice="Drop these turns and count them; take the stop from the same speech as the start (clear it when a new "
        "speech begins), and measure the delay from the end of the words' audio.",
        price="Numbers from before and after the fix cannot be compared.",
        verify="tailrace diagnose turns.json",
        disproof_checked=[f"{n - wrong.size} of {n} turns have their stamps in order"],
    )


def _negative(cause: Cause, turns: Turns) -> Finding | None:
    for column in ("transcription_delay", "end_of_turn", "llm_ttft", "tts_ttfb"):
        values = turns.get(column)
        known = values[np.isfinite(values)]
        below = known[known < -NOTHING_MS]
        if not below.size or below.size < NEGATIVE_SHARE * known.size:
            continue
        source = str(turns.place_of(int(np.nanargmin(values))))
        return cause.finding(
            statement=f"{below.size} of {known.size} values of {column.replace('_', ' ')} are negative, the lowest "
            f"{below.min() / 1e3:.2f} s: a stamp of another turn, or of another clock.",
            evidence=[
                Evidence(
                    text=f"{below.size} of {known.size} values negative, the lowest {below.min() / 1e3:.2f} s",
                    source=source,
                    name=column,
                    value=round(float(below.min()), 3),
                    unit="ms",
                )
            ],
            explains_ms=None,
            relation=f"{below.min() / 1e3:.2f} s < 0 in {below.size} of {known.size}",
            n=int(known.size),
            advice=_ADVICE,
            price="Numbers from before and after the fix cannot be compared.",
            verify="tailrace diagnose turns.csv",
        )
    return None


def _before_its_audio(cause: Cause, stream: SpeechStream) -> Finding | None:
    """Results that speak of audio which had not been received."""
    audio = np.flatnonzero(stream.audio & np.isfinite(stream.end))
    chosen = np.flatnonzero(stream.words & np.isfinite(stream.end))
    if not audio.size or chosen.size < LEAST:
        return None
    order = audio[np.argsort(stream.at[audio], kind="stable")]
    most = np.maximum.accumulate(stream.end[order])
    place = np.searchsorted(stream.at[order], stream.at[chosen], side="right") - 1
    come = np.where(place >= 0, most[np.maximum(place, 0)], 0.0)
    ahead = stream.end[chosen] - come
    wrong = ahead > APART_S
    if wrong.sum() < LEAST or wrong.mean() < NEGATIVE_SHARE:
        return None
    worst = int(np.argmax(ahead))
    n, of, far = int(wrong.sum()), int(chosen.size), float(ahead.max())
    source = str(stream.place_of(int(chosen[worst])))
    return cause.finding(
        statement=f"{n} of {of} results come before the audio that they speak of, up to {far:.2f} s, which is "
        "impossible: their positions, or the stamps, are of another clock or another turn.",
        evidence=[
            Evidence(
                text=f"stream {stream.name}: result up to {stream.end[chosen[worst]]:.2f} s of audio when "
                f"{come[worst]:.2f} s had been received",
                source=source,
                name="ahead",
                value=round(far, 3),
                unit="s",
            ),
            Evidence(text=f"{n} of {of} results are so", source=source, name="before_audio", value=float(n)),
        ],
        explains_ms=None,
        relation=f"audio_end - received = {far:.2f} s > 0 in {n} of {of}",
        n=of,
        advice=_ADVICE,
        price="Numbers from before and after the fix cannot be compared.",
        verify="tailrace diagnose events.jsonl",
        disproof_checked=["the received audio stands in the same file, on the same clock"],
    )


def _arrival(cause: Cause, stream: SpeechStream) -> Finding | None:
    """The event's own stamp moves with its receipt, and not with the audio that it speaks of."""
    chosen = np.flatnonzero(stream.deltas & np.isfinite(stream.stamp) & np.isfinite(stream.end))
    if chosen.size < LEAST:
        return None
    offset = stream.stamp[chosen] - stream.at[chosen]
    behind = stream.stamp[chosen] - stream.end[chosen]
    if float(np.ptp(offset)) > SAME_S:
        return None
    # Where both clocks begin together the distance itself tells; elsewhere only that it changes.
    together = abs(float(np.median(offset))) <= SAME_S
    apart = float(np.median(behind)) if together else float(np.ptp(behind))
    if apart < APART_S:
        return None
    source = str(stream.place_of(int(chosen[0])))
    low, high = float(behind.min()), float(behind.max())
    n = int(chosen.size)
    range_words = f"{low:.1f} to {high:.1f} s after" if together else f"{high - low:.1f} s more or less after"
    return cause.finding(
        statement=f"The transcript's stamp is the arrival of its message in all {n} results: it lies {range_words} "
        "the end of the words' audio in the same payload.",
        evidence=[
            Evidence(
                text=f"stream {stream.name}: stamp = receive time in {n} of {n} results (within {SAME_S * 1e3:.0f} ms)",
                source=source,
                name="stamp_minus_arrival",
                value=round(float(np.median(np.abs(offset - np.median(offset)))), 4),
                unit="s",
            ),
            Evidence(
                text=f"the payload's audio_end lies earlier: the stamp is {range_words} it",
                source=source,
                name="stamp_minus_audio_end",
                value=round(float(np.median(behind)), 3),
                unit="s",
            ),
        ],
        explains_ms=None,
        relation=f"stamp - arrival = {float(np.median(offset)):.2f} s for all; stamp - audio_end = {low:.1f} to "
        f"{high:.1f} s",
        n=n,
        advice="Use the word start and end times of the payload (audio_start, audio_end, words[]) for where words "
        "stand; keep the arrival as a second stamp: the two together are the latency.",
        price="Positions count from the start of the audio: keep when that was.",
        verify="tailrace diagnose events.jsonl",
        disproof_checked=[f"stamps follow the receipt in {n} of {n} results, and the audio in none"],
    )
