"""A profile of the front end's process (`py-spy top`): what keeps its one interpreter busy."""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Event, Observed
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["interpreter_full", "work_on_top"]

SHARE: Final = 0.2
"""Of the samples; a function with less stops nobody for long."""
FULL: Final = 0.9
OF_THE_LOOP: Final = frozenset({"tokenizer", "image", "audio", "grammar", "detokenizer"})
_LACKS: Final = (
    "the loop's lag (timer drift, or the round trip of /health) and the chunk gaps of several streams while it is "
    "slow: a profile says what runs, not who waits for it"
)
_RATE: Final = "tailrace bench http://localhost:8000 --rate 5 --duration 120 --out after.run"


def _top(observed: Observed) -> list[Event]:
    """Functions by their own share, the largest first; of one class the own shares add up."""
    return sorted(observed.of_kind("profile"), key=lambda event: -float(event.attributes.get("own", 0.0)))


def _of_class(observed: Observed) -> tuple[str, float, list[Event]] | None:
    """(class, its share of the samples, its functions): of the work that belongs off the loop, what takes the most."""
    shares: dict[str, list[Event]] = {}
    for event in _top(observed):
        name = str(event.attributes.get("class"))
        if name in OF_THE_LOOP:
            shares.setdefault(name, []).append(event)
    if not shares:
        return None
    own = {name: sum(float(one.attributes["own"]) for one in events) for name, events in shares.items()}
    name = max(own, key=lambda each: (own[each], each))
    return (name, own[name], shares[name]) if own[name] >= SHARE else None


def _load(observed: Observed) -> list[Evidence]:
    return [
        Evidence(
            text=f"{words} {observed.number(name):.0%} of one core",
            source=observed.source_of(name),
            name=name,
            value=observed.number(name),
            unit="share",
        )
        for name, words in (("gil_share", "the interpreter's lock is held"), ("active_share", "threads are active"))
        if observed.number(name) is not None
    ]


def _functions(events: list[Event]) -> list[Evidence]:
    return [
        Evidence(
            text=f"{event.text} takes {float(event.attributes['own']):.0%} of the samples itself",
            source=str(event.place),
            name="profile",
            value=float(event.attributes["own"]),
            unit="share",
        )
        for event in events[:3]
    ]


def work_on_top(cause: Cause, observed: Observed) -> Finding | None:
    """Tokenising, images, audio take a fifth of the interpreter or more: whether the streams stop by it, no profile
    says.
    """
    found = _of_class(observed)
    if found is None:
        return None
    name, share, events = found
    parts = " + ".join(f"{float(event.attributes['own']):.0%}" for event in events)
    return cause.finding(
        statement=f"The front end's process does {name} work for {share:.0%} of the time: while it does that for one "
        "request, no stream gets a token.",
        evidence=[
            *_functions(events),
            Evidence(f"{name} work: {share:.0%} of the samples", str(events[0].place), "share", share),
            *_load(observed),
        ],
        explains_ms=None,
        relation=f"{parts} = {share:.0%} of the samples >= {SHARE:.0%}",
        n=len(events),
        advice="Take tokenising, image and audio work off the loop (a pool of threads or processes; vLLM: "
        "`--api-server-count`, SGLang: `--tokenizer-worker-num`) and bound how much of it runs at once.",
        price="Work that waits in a pool counts into its own stage.",
        verify=f"{_RATE} && tailrace compare before.run after.run",
        missing=[_LACKS],
        level=Level.SUSPECTED,
        action=Action.FIX,
    )


def interpreter_full(cause: Cause, observed: Observed) -> Finding | None:
    """One interpreter at its limit, by nothing that belongs off the loop: more processes, not more cores."""
    held = observed.number("gil_share")
    if held is None or held < FULL or _of_class(observed) is not None:
        return None
    events = _top(observed)
    return cause.finding(
        statement=f"One interpreter is full: its lock is held for {held:.0%} of the time, so a single core limits the "
        "process, however many the machine has.",
        evidence=[*_load(observed), *_functions(events)],
        explains_ms=None,
        relation=f"{held:.0%} >= {FULL:.0%} of one core",
        n=len(events),
        advice="Add processes, not cores (vLLM: --api-server-count; one worker a core behind one port): one process "
        "cannot use a second core for Python.",
        price="Each process takes memory and tokenises by itself.",
        verify=f"{_RATE} && tailrace compare before.run after.run",
        missing=["ITL or TPOT of the same window, to see that tokens are late by it"],
        level=Level.SUSPECTED,
        action=Action.FIX,
    )
