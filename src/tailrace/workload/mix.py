"""Mixes: which classes of requests there are, how often each comes, and how long its prompts and outputs are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from tailrace.model.errors import InputError
from tailrace.workload.length import Fixed, Length, LogNormal, Uniform, describe, parse_length
from tailrace.workload.traits import PLAIN, Traits

_BLOCK = 1024
"""Draws a block. Fixed, so that the sequence does not depend on how much of it is consumed at a time."""


MOST_WEIGHT: Final = 1e9
"""Of one class; the sum of all has to be a number too."""


class TrafficClass(msgspec.Struct, frozen=True, kw_only=True):
    """One class of requests. `correlation` is that of the two lengths' normal deviates, -1 to 1."""

    name: str
    weight: float = 1.0
    prompt: Length
    output: Length
    correlation: float = 0.0
    traits: Traits = PLAIN


class Drawn(NamedTuple):
    """One request's class and lengths (tokens)."""

    name: str
    prompt_tokens: int
    output_tokens: int


CLASSES: Final[dict[str, TrafficClass]] = {
    known.name: known
    for known in (
        TrafficClass(name="short", prompt=LogNormal(80, 0.6, 8, 400), output=LogNormal(60, 0.5, 8, 240)),
        # Medians, p90s and maxima of the public Azure 2023 conversation and code traces, fitted log-normal.
        TrafficClass(
            name="chat", prompt=LogNormal(1020, 0.77, 16, 14_050), output=LogNormal(129, 0.93, 2, 1000),
            correlation=-0.1,
        ),
        TrafficClass(name="code", prompt=LogNormal(1469, 0.98, 16, 7437), output=LogNormal(13, 1.13, 1, 1899)),
        TrafficClass(name="long", prompt=LogNormal(6000, 0.3, 3000, 16_000), output=LogNormal(200, 0.5, 16, 800)),
        TrafficClass(name="document", prompt=LogNormal(12_000, 0.35, 6000, 32_000), output=LogNormal(60, 0.5, 8, 400)),
    )
}  # fmt: skip
"""The named classes with their stated lengths."""

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_REMEDY = (
    "Write NAME:WEIGHT with a known class (" + ", ".join(CLASSES) + "), or NAME=PROMPT/OUTPUT:WEIGHT in tokens, "
    "for example 'chat=300/40:0.95,document=12000/60:0.05'"
)


def parse_mix(text: str) -> list[TrafficClass]:
    """Read `short:0.9,long:0.1` or `chat=300/40:0.95,document=6000-12000/60~0.5:0.05`.

    A class without a weight has weight 1; weights need not add up to 1. Lengths are written as `parse_length`
    reads them. Raises `InputError` that names the part which cannot be read.
    """
    out: list[TrafficClass] = []
    for raw in text.split(","):
        part = raw.strip()
        head, colon, weight_text = part.partition(":")
        name, equals, lengths = head.partition("=")
        name = name.strip()
        if not _NAME.fullmatch(name):
            raise InputError(f"cannot read {part!r}", place="--mix", remedy=_REMEDY)
        if any(known.name == name for known in out):
            raise InputError(f"class {name!r} is named twice", place="--mix", remedy="Give each class one weight")
        weight = _weight(weight_text, part) if colon else 1.0
        if equals:
            prompt, slash, output = lengths.partition("/")
            if not slash:
                raise InputError(f"cannot read {part!r}", place="--mix", remedy=_REMEDY)
            place = f"--mix {name}"
            known = TrafficClass(
                name=name, prompt=parse_length(prompt, place=place), output=parse_length(output, place=place)
            )
        elif name in CLASSES:
            known = CLASSES[name]
        else:
            raise InputError(f"there is no class {name!r}", place="--mix", remedy=_REMEDY)
        out.append(msgspec.structs.replace(known, weight=weight))
    return out


def _weight(text: str, part: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 < weight <= MOST_WEIGHT:
        raise InputError(
            f"the weight in {part!r} is no number above 0 and at most {MOST_WEIGHT:g}", place="--mix", remedy=_REMEDY
        )
    return weight


def render_mix(classes: list[TrafficClass]) -> str:
    """The mix as one line that `parse_mix` reads, except for clipping and correlation of the named classes."""
    parts = []
    for one in classes:
        known = CLASSES.get(one.name)
        same = known is not None and (known.prompt, known.output) == (one.prompt, one.output)
        lengths = "" if same else f"={_plain(one.prompt)}/{_plain(one.output)}"
        parts.append(f"{one.name}{lengths}:{one.weight:g}")
    return ",".join(parts)


def stated(classes: list[TrafficClass]) -> dict[str, dict[str, Any]]:
    """The classes as a run file's header states them, by name: weight, lengths, and traits where there are any."""
    return {
        one.name: {
            "weight": one.weight,
            "prompt": describe(one.prompt),
            "output": describe(one.output),
            "correlation": one.correlation,
            **({} if one.traits == PLAIN else {"traits": msgspec.to_builtins(one.traits)}),
        }
        for one in classes
    }


def _plain(length: Length) -> str:
    if isinstance(length, Fixed | Uniform):
        return str(length)
    return f"{length.median}~{length.sigma:g}"


def draws(classes: list[TrafficClass], rng: np.random.Generator) -> Iterator[Drawn]:
    """Endless draws of a class and, jointly, its prompt and output lengths (at least 1 token each)."""
    if not classes:
        raise InputError("a mix needs at least one class", place="--mix", remedy=_REMEDY)
    weights = np.array([one.weight for one in classes])
    edges = np.cumsum(weights / weights.sum())
    while True:
        # Always the same draws in the same order, whatever the classes are: a changed weight changes only what
        # it must, so that two mixes can be compared on common random numbers.
        which = np.minimum(np.searchsorted(edges, rng.random(_BLOCK), side="right"), len(classes) - 1)
        z = rng.standard_normal((2, _BLOCK))
        prompts = np.empty(_BLOCK, dtype=np.int64)
        outputs = np.empty(_BLOCK, dtype=np.int64)
        for i, one in enumerate(classes):
            mine = which == i
            rho = one.correlation
            prompts[mine] = one.prompt.at(z[0, mine])
            outputs[mine] = one.output.at(rho * z[0, mine] + math.sqrt(1 - rho**2) * z[1, mine])
        names = [classes[i].name for i in which.tolist()]
        for name, prompt, output in zip(names, prompts.tolist(), outputs.tolist(), strict=True):
            yield Drawn(name, max(prompt, 1), max(output, 1))
