"""Workloads described in a file: classes with their lengths and everything else that a class may have.

The texts of lengths, spans and leaves are those of the command line. What cannot be read is an `InputError` whose place
is the path of the key: `classes[0].think`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace.model.errors import InputError
from tailrace.workload.call import Call
from tailrace.workload.leave import check_leaves, parse_leave
from tailrace.workload.length import Length, parse_length
from tailrace.workload.mix import CLASSES, MOST_WEIGHT, TrafficClass
from tailrace.workload.prefix import Prefixes
from tailrace.workload.session import Sessions
from tailrace.workload.span import parse_spans
from tailrace.workload.traits import Traits


class DescribedClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One class of requests."""

    name: str
    weight: float = 1.0
    prompt: int | str | None = None
    """Tokens: 300, "200-400" (uniform) or "300~0.5" (log-normal). Named classes (short, chat, ...) have their own."""
    output: int | str | None = None
    correlation: float = 0.0
    """Of the two lengths' normal deviates, -1 to 1."""
    turns: int | str | None = None
    """Of a session: 4, "3-8", "5~0.5"."""
    think: str | None = None
    """From an answer to the next turn: "5s", "2s-10s", "5s~0.8"."""
    follow_up: int | str | None = None
    """Tokens of a later turn's message; as the first one's where absent."""
    shared_prefix: int | None = None
    """Tokens of the prefix that a prompt begins with."""
    prefix_pool: int = 1
    prefix_hit: float | None = None
    """Instead of `shared_prefix`: the share of all prompt tokens that a prefix cache is to find."""
    prefix_zipf: float = 0.0
    cancel: str | list[str] = []
    """ "after 5 tokens:0.2", "after 2s:0.1"."""
    objectives: dict[str, str] = {}
    """`ttft_p99: 500ms`."""
    endpoint: str = ""
    model: str | None = None
    stream: bool | None = None
    natural: bool | None = None
    extra_body: dict[str, Any] = {}
    audio: str | None = None
    """Length of synthetic recordings: "10s", "5s-30s"."""
    batch: int = 1
    """Inputs in a request for embeddings."""


class DescribedWorkload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `tailrace bench --workload FILE` reads."""

    classes: list[DescribedClass]
    objectives: dict[str, str] = {}
    """Of every class that has none of its own for a metric."""


def classes_of(described: DescribedWorkload) -> list[TrafficClass]:
    """The classes, checked. Raises `InputError` whose place is the path of the key."""
    if not described.classes:
        raise InputError(
            "there is no class", place="classes", remedy="Add one: [{name: chat, prompt: 300, output: 60}]"
        )
    out: list[TrafficClass] = []
    for i, one in enumerate(described.classes):
        place = f"classes[{i}]"
        if any(known.name == one.name for known in out):
            raise InputError(f"class {one.name!r} is described twice", place=f"{place}.name", remedy="Rename one")
        out.append(_class(one, place))
    return out


def _class(one: DescribedClass, place: str) -> TrafficClass:
    known = CLASSES.get(one.name)
    audio = one.audio is not None
    prompt, output = _length(one.prompt, f"{place}.prompt"), _length(one.output, f"{place}.output")
    if known is None and prompt is None and not audio:
        raise InputError(
            f"class {one.name!r} has no length",
            place=f"{place}.prompt",
            remedy=f"Write prompt and output, or name a known class ({', '.join(CLASSES)})",
        )
    if not (one.name and one.name.isprintable()) or any(c in one.name for c in '/,:="'):
        raise InputError(f"{one.name!r} is no name", place=f"{place}.name", remedy="Letters, digits, - and _ will do")
    if not 0 < one.weight <= MOST_WEIGHT:
        raise InputError(f"must be above 0 and at most {MOST_WEIGHT:g}, got {one.weight:g}", place=f"{place}.weight")
    if not -1 <= one.correlation <= 1:
        raise InputError(f"must be from -1 to 1, got {one.correlation:g}", place=f"{place}.correlation")
    default = known or CLASSES["short"]
    return TrafficClass(
        name=one.name,
        weight=one.weight,
        prompt=prompt or default.prompt,
        output=output or default.output,
        correlation=one.correlation if known is None or one.correlation else known.correlation,
        traits=_traits(one, place),
    )


def _traits(one: DescribedClass, place: str) -> Traits:
    cancel = [one.cancel] if isinstance(one.cancel, str) else one.cancel
    leaves = [parse_leave(text, place=f"{place}.cancel") for text in cancel]
    check_leaves(leaves, place=f"{place}.cancel")
    sessions = None
    turns = _length(one.turns, f"{place}.turns")
    if turns is not None:
        sessions = Sessions(
            turns=turns,
            think=parse_spans(one.think or "0s", place=f"{place}.think"),
            follow_up=_length(one.follow_up, f"{place}.follow_up"),
        )
    elif one.think is not None or one.follow_up is not None:
        raise InputError("only sessions have later turns", place=f"{place}.turns", remedy="Add turns: 3-8")
    if one.batch < 1:
        raise InputError(f"must be at least 1, got {one.batch}", place=f"{place}.batch")
    return Traits(
        sessions=sessions,
        leaves=leaves,
        prefixes=_prefixes(one, place),
        audio=None if one.audio is None else parse_spans(one.audio, place=f"{place}.audio", zero=False),
        batch=one.batch,
        call=Call(
            endpoint=one.endpoint,
            model=one.model,
            stream=one.stream,
            natural=one.natural,
            extra_body=one.extra_body,
        ),
    )


def _prefixes(one: DescribedClass, place: str) -> Prefixes | None:
    if one.shared_prefix is None and one.prefix_hit is None:
        if one.prefix_pool != 1 or one.prefix_zipf:
            raise InputError(
                "a pool of prefixes needs their length or a hit rate",
                place=f"{place}.prefix_pool",
                remedy="Add prefix_hit: 0.6, or shared_prefix: 2000",
            )
        return None
    try:
        return Prefixes(pool=one.prefix_pool, tokens=one.shared_prefix, hit=one.prefix_hit, zipf=one.prefix_zipf)
    except InputError as error:
        key = (error.place or "").removeprefix("--").replace("-", "_")
        raise InputError(error.message, place=f"{place}.{key}", remedy=error.remedy) from None


def _length(text: int | str | None, place: str) -> Length | None:
    return None if text is None else parse_length(str(text), place=place)
