"""The arms of a comparison as they are typed: `before.run`, `new=after-*.run`, `a1.run,a2.run`."""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.model.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.analyze.compare_summaries import Side
    from tailrace.store.run_file import Run
    from tailrace.store.table import RecordTable

__all__ = ["Arm", "arms_of", "named", "read_arm", "with_requests"]

_NAME: Final = re.compile(r"^([\w .+-]+)=(.+)$")
_URL: Final = ("http://", "https://")


class Arm(NamedTuple):
    """One arm: what it is called and the sources of its runs."""

    name: str
    sources: list[str]


def arms_of(given: Sequence[str], a: str | None, b: str | None) -> list[Arm]:
    """The arms, in order: `--a` and `--b` first. InputError for fewer than two, or a pattern that matches nothing."""
    texts = [text for text in (a, b) if text is not None] + list(given)
    if (a is None) != (b is None) and len(texts) < 2:
        raise InputError(
            "one arm alone cannot be compared", place="--a" if b is None else "--b", remedy="Give the other."
        )
    if len(texts) < 2:
        raise InputError(
            f"{len(texts)} arm was given, two are the least",
            place="compare",
            remedy="For example: tailrace compare before.run after.run",
        )
    plain = [_arm(text) for text in texts]
    names = [name or _stem(sources) for name, sources in plain]
    out = []
    for i, (name, (_, sources)) in enumerate(zip(names, plain, strict=True)):
        same = names.count(name) > 1
        # Two files of one name in two directories are told apart by their whole paths.
        unique = sources[0] if same and len(sources) == 1 else f"{name} ({i + 1})" if same else name
        out.append(Arm(unique, sources))
    if len({arm.name for arm in out}) < len(out):
        out = [Arm(f"{arm.name} ({i})", arm.sources) for i, arm in enumerate(out, start=1)]
    return out


def _arm(text: str) -> tuple[str, list[str]]:
    if Path(text).exists() or text.startswith(_URL):
        return "", [text]
    found = _NAME.match(text)
    name, rest = (found[1], found[2]) if found else ("", text)
    sources: list[str] = []
    for part in [rest] if Path(rest).exists() or rest.startswith(_URL) else rest.split(","):
        one = part.strip()
        if not one:
            continue
        if any(mark in one for mark in "*?[") and not Path(one).exists():
            matched = sorted(glob.glob(one))  # noqa: PTH207  (a pattern as it was typed, absolute or not)
            if not matched:
                raise InputError("no file matches", place=one, remedy="Quote the pattern and check its directory.")
            sources += matched
        else:
            sources.append(one)
    if not sources:
        raise InputError("it names no run", place=text, remedy="Write NAME=RUN, RUN,RUN or a pattern.")
    return name, sources


def _stem(sources: list[str]) -> str:
    if sources[0].startswith(_URL):
        return sources[0]
    stems = [Path(source).name.removesuffix(".run") for source in sources]
    if len(stems) == 1:
        return stems[0]
    return _common(stems) or _common([stem[::-1] for stem in stems])[::-1] or f"{stems[0]}+{len(stems) - 1}"


def _common(stems: list[str]) -> str:
    """What all begin with, without the beginning of a number that they do not share: `fp8` of `fp8-10`, `fp8-11`."""
    head = stems[0]
    while not all(stem.startswith(head) for stem in stems):
        head = head[:-1]
    if any(stem[len(head) : len(head) + 1].isdigit() for stem in stems):
        head = head.rstrip("0123456789")
    return head.strip("-_. ")


def named(arms: Sequence[Arm], baseline: str | None) -> str:
    """The name of the baseline: the first arm's, or the one that `--baseline` names (by name or by a file of it)."""
    if baseline is None:
        return arms[0].name
    for arm in arms:
        if baseline == arm.name or baseline in arm.sources:
            return arm.name
    raise InputError(
        f"there is no arm {baseline!r}", place="--baseline", remedy=f"Arms are {', '.join(arm.name for arm in arms)}."
    )


def read_arm(arm: Arm, *, partial: bool) -> tuple[list[Side], float]:
    """(the arm's runs, the largest share of records that one of them lost)."""
    from tailrace.app.diagnose import read_any

    runs: list[Side] = []
    dropped = 0.0
    for source in arm.sources:
        for one in read_any(source, allow_partial=partial):
            found: Side | None = one.run if one.run is not None else one.table
            found = found if found is not None else one.aggregate
            if found is not None:
                runs.append(found)
                dropped = max(dropped, one.dropped)
                break
        else:
            raise InputError("it holds no records of requests", place=source, remedy="Give a run file or records.")
    return runs, dropped


def with_requests(arm: Arm, sides: Sequence[Side]) -> list[Run | RecordTable]:
    """What can be pooled and ranked. InputError for percentiles: of them only two can be laid side by side."""
    from tailrace.analyze.aggregate import Aggregate

    for side in sides:
        if isinstance(side, Aggregate):
            raise InputError(
                "it holds percentiles, no requests",
                place=side.path,
                remedy=f"Compare it with one other result, or give a run with its requests for {arm.name}.",
            )
    return [side for side in sides if not isinstance(side, Aggregate)]
