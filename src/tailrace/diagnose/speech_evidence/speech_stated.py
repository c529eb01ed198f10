"""Speech by stated numbers, in a form, a table or a series: silence while somebody speaks, deltas without text, audio
that is made more slowly than it plays.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arms.asked import told
from tailrace.diagnose.arms.measures import Measure, Measures, measures_of
from tailrace.diagnose.observed import Observed, Series
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["Synthesis", "empty_stated", "silent_in_series", "silent_stated", "synthesis_stated"]

IDLE_MS: Final = 5000.0
VOICED_MS: Final = 1000.0
MOSTLY: Final = 0.5
LEAST: Final = 8
_TEXT: Final = r"(?:text|deltas?|transcripts?|transcription|results?|words?|partials?|finals?|tokens?|events?|output)"
_SILENT: Final = (
    rf"(?:\bno|without|since)\b(?: any| the| non empty)?(?: last| new)?(?: \w+)? ?{_TEXT}|"
    rf"{_TEXT} (?:gap|silence|pause)|"
    r"silent (?:for|s\b|seconds|time)|silence (?:for|length)|(?:hang|hung|stuck)(?: for| s\b| duration| seconds)"
)
_LAST: Final = rf"last (?:non empty )?{_TEXT}"
_NOW: Final = r"^now\b|\bnow s\b|\bcurrent(?:ly| time)|observed at|log end|end of log"
_VOICED: Final = r"voiced|speech (?:s\b|sent|since|in|received|seconds)|^speech\b|spoken|speaking|talk(?:ed|ing)"
_BLANK: Final = r"\b(?:empty|blank)\b"
_SPOKE: Final = re.compile(
    r"(?:voice|speech)_?(?:is_|was_)?(?:present|active|detected|heard|sent|ongoing|during|meanwhile|there)|voiced|"
    r"is_speech|has_speech|(?:speaking|talking)(?!_?(?:rate|style|speed|limit|head))|(?:user|caller|somebody|someone)_"
    r"(?:spoke|speaks|talks|talked)",
    re.IGNORECASE,
)
"""That somebody spoke then; that an agent has a voice, or speech to text is on, says nothing of it."""
_VOICE_FLAG: Final = re.compile(r"voice|speech|speaking|\bvad\b|talking", re.IGNORECASE)
_TEXT_COUNT: Final = re.compile(r"char|word|text|transcript|delta|partial|result|token", re.IGNORECASE)
_TIMERS: Final = (
    "Give each session a timer for the first delta, for idleness and for `done`, each with its own reason; end the "
    "session when one runs out, open a new one and send the audio since the last result again."
)


def _spoke(group: Measures, observed: Observed) -> Measure | str | None:
    """What says that somebody spoke meanwhile."""
    found = group.ms(_VOICED, r"first|silence|no (?:voice|speech)|threshold|delay")
    if found is not None and (found.ms or 0.0) >= VOICED_MS:
        return found
    said = next((one for one in told(observed) if one.value is True and _SPOKE.search(one.name)), None)
    return None if said is None else f"{said.name.replace('_', ' ')}: yes"


def _shown(spoke: Measure | str, place: str) -> Evidence:
    return spoke.evidence if isinstance(spoke, Measure) else Evidence(spoke, place)


def silent_stated(cause: Cause, observed: Observed) -> Finding | None:
    """For how long no text came, stated or as two times, and how much was spoken meanwhile."""
    for group in measures_of(observed):
        silent = group.ms(_SILENT, r"voiced|speech|audio|config|timeout|limit|max")
        last, now = group.ms(_LAST, "since|gap"), group.ms(_NOW)
        shown = [one for one in (last, now) if one is not None]
        length, relation = (silent.ms or 0.0, "") if silent is not None else (0.0, "")
        if silent is None and last is not None and now is not None:
            length = (now.ms or 0.0) - (last.ms or 0.0)
            relation = f"{(now.ms or 0.0) / 1e3:.4g} - {(last.ms or 0.0) / 1e3:.4g} = "
        spoke = _spoke(group, observed)
        if length <= IDLE_MS or spoke is None or (silent is None and len(shown) < 2):
            continue
        voiced = spoke.words if isinstance(spoke, Measure) else spoke
        amount = f" of {(spoke.ms or 0.0) / 1e3:.4g} s" if isinstance(spoke, Measure) else ""
        first = silent if silent is not None else shown[0]
        return cause.finding(
            statement=f"No text came for {length / 1e3:.4g} s while speech{amount} was sent ({voiced}): the session "
            "hangs with its socket open.",
            evidence=[
                *(one.evidence for one in ([silent] if silent is not None else shown)),
                Evidence(f"{length / 1e3:.4g} s without text", first.place, "silence", length / 1e3, "s"),
                _shown(spoke, first.place),
            ],
            explains_ms=length,
            relation=f"{relation}{length / 1e3:.4g} s > {IDLE_MS / 1e3:g} s without text",
            n=1,
            advice=_TIMERS,
            price="A timer that is too short ends sessions of people who pause.",
            verify="tailrace diagnose events.jsonl",
            missing=["the events of the session with voiced audio (`kind: audio`)"],
            disproof_checked=[f"somebody spoke meanwhile ({voiced})"],
        )
    return None


def silent_in_series(cause: Cause, observed: Observed) -> Finding | None:
    """A count of texts that stands still while a voice detector's word is yes."""
    for voice in observed.series:
        if not _VOICE_FLAG.search(voice.name.replace("_", " ")) or voice.axis not in {"time", "session_age"}:
            continue
        flags = voice.values[np.isfinite(voice.values)]
        if not flags.size or not set(np.unique(flags)) <= {0.0, 1.0}:
            continue
        for text in observed.series:
            if text is voice or text.place.source != voice.place.source or len(text) != len(voice):
                continue
            if _TEXT_COUNT.search(text.name) and bool((np.diff(text.values) >= 0).all()) and text.values[-1] > 0:
                found = _still(cause, voice, text)
                if found is not None:
                    return found
    return None


def _still(cause: Cause, voice: Series, text: Series) -> Finding | None:
    best, spoken, begin = 0.0, 0.0, 0
    start = 0
    for index in range(1, len(text)):
        if text.values[index] > text.values[index - 1]:
            start = index
            continue
        length = float(text.at[index] - text.at[start])
        heard = float(np.diff(voice.at[start : index + 1])[voice.values[start + 1 : index + 1] > 0].sum())
        if length > best and heard * 1e3 >= VOICED_MS:
            best, spoken, begin = length, heard, start
    if best * 1e3 <= IDLE_MS:
        return None
    name = text.name.replace("_", " ")
    return cause.finding(
        statement=f"{name} stands at {text.values[begin]:g} for {best:.4g} s, {spoken:.4g} s of which somebody speaks: "
        "the session hangs with its socket open.",
        evidence=[
            Evidence(
                f"{name} {text.values[begin]:g} from {text.at[begin]:g} s on", str(text.line_of(begin)), text.name
            ),
            Evidence(f"{best:.4g} s without text", str(text.line_of(begin)), "silence", best, "s"),
            Evidence(
                f"{voice.name.replace('_', ' ')} for {spoken:.4g} s of it", str(voice.place), "voiced", spoken, "s"
            ),
        ],
        explains_ms=best * 1e3,
        relation=f"{best:.4g} s > {IDLE_MS / 1e3:g} s without text, voiced {spoken:.4g} s",
        n=len(text),
        advice=_TIMERS,
        price="A timer that is too short ends sessions of people who pause.",
        verify="tailrace diagnose events.jsonl",
        disproof_checked=[f"{spoken:.4g} s of the silence were voiced"],
    )


def empty_stated(cause: Cause, observed: Observed) -> Finding | None:
    """How many of how many deltas were empty, and that somebody spoke."""
    worst: tuple[float, Measures, Measure, Measure] | None = None
    for group in measures_of(observed):
        blank = group.find(_BLANK, r"ratio|share|percent|pct|per s|rate|queue|batch")
        total = group.find(rf"\b{_TEXT}\b|^total", r"empty|blank|char|per s|rate|time|latency| ms| s$|tok s")
        if blank is None or total is None or total.value < LEAST or not 0 < blank.value <= total.value:
            continue
        share = blank.value / total.value
        if share >= MOSTLY and (worst is None or share > worst[0]):
            worst = share, group, blank, total
    if worst is None:
        return None
    share, group, blank, total = worst
    spoke = _spoke(group, observed)
    during = "" if spoke is None else f" while somebody spoke ({spoke.words if isinstance(spoke, Measure) else spoke})"
    lasted = group.ms(r"interval|duration|window|lasted|span|minutes")
    rate = f", {blank.value / (lasted.ms or 1.0) * 1e3:.3g} a second" if lasted is not None and lasted.ms else ""
    return cause.finding(
        statement=f"{blank.value:g} of {total.value:g} deltas were empty ({share:.1%}{rate}){during}: by its gaps the "
        "stream looks healthy.",
        evidence=[
            blank.evidence,
            total.evidence,
            Evidence(f"{share:.1%} of the deltas are empty{rate}", blank.place, "empty_delta_ratio", round(share, 4)),
            *([_shown(spoke, blank.place)] if spoke is not None else []),
        ],
        explains_ms=lasted.ms if lasted is not None else None,
        relation=f"{blank.value:g}/{total.value:g} = {share:.1%} empty",
        n=int(total.value),
        advice="Alarm on the share of empty deltas during speech, not on gaps. Restart the stream's decoding state (a "
        "new session with the audio since the last word) when the share stays at 1 for seconds.",
        price="A restarted session loses its context, and decodes the audio again.",
        verify="tailrace diagnose events.jsonl",
        missing=[] if spoke is not None else ["whether somebody spoke while they were empty (`kind: audio`, `voiced`)"],
        disproof_checked=["somebody spoke meanwhile"] if spoke is not None else [],
    )


class Synthesis(NamedTuple):
    """Audio that was made, and how long that took."""

    rtf: float
    """Seconds of work for each second of audio."""
    streams: float | None
    first_ms: float | None
    """To the first audio."""
    place: str


_MADE: Final = r"audio|speech (?:length|duration|made)|playback (?:length|duration)|clip"
_NOT_MADE: Final = r"first|ttf|received|processed|latency|delay|per|gap|underrun|buffer|stall|input|encod"
_TOOK: Final = r"synth|generat|render|compute|busy|inference|vocod|tts|took|wall"
_NOT_TOOK: Final = r"first|ttf|audio|queue|tokens?|latency to|gap|per chunk|llm"
_RATIO: Final = r"(?:seconds?|s|time) per (?:\w+ )*(?:audio second|second of audio)|per audio second"


def synthesis_stated(observed: Observed) -> Synthesis | None:
    """The busiest condition whose synthesis takes longer than its audio plays; rows of utterances count together."""
    groups = measures_of(observed)
    found: list[Synthesis] = []
    took_all = made_all = 0.0
    first: list[float] = []
    place = ""
    for group in groups:
        streams = group.find(r"streams|voices|speakers|sessions|concurren|clients|calls", r"per |max|limit")
        many = streams.value if streams is not None else None
        heard = group.ms(r"ttf|first (?:audio|byte|chunk|sound)")
        ratio = group.find(_RATIO)
        rtf = None if ratio is None else (ratio.ms or 0.0) / 1e3 if ratio.unit else ratio.value
        if ratio is not None and rtf is not None and 1.0 < rtf < 100:
            found.append(Synthesis(rtf, many, heard.ms if heard else None, ratio.place))
        made, took = group.ms(_MADE, _NOT_MADE), group.ms(_TOOK, _NOT_TOOK)
        if made is None or took is None or made is took or not made.ms or not took.ms:
            continue
        if many is not None and took.ms > made.ms:
            found.append(Synthesis(took.ms / made.ms, many, heard.ms if heard else None, took.place))
        took_all, made_all, place = took_all + took.ms, made_all + made.ms, took.place
        first += [heard.ms] if heard is not None and heard.ms is not None else []
    if not found and made_all > 0 and took_all > made_all:
        found.append(Synthesis(took_all / made_all, None, float(np.median(first)) if first else None, place))
    return max(found, key=lambda one: one.rtf) if found else None
