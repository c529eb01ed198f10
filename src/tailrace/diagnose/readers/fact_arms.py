"""Arms that facts hold without saying so: one number under several conditions, in the words of its keys or as a list.

`tpot_fp8_ms` beside `tpot_bf16_ms` is one number of two arms, and so is `tpot_ms: [21.0, 33.9]` beside
`running: [64, 64]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tailrace.diagnose.observed import Arm, Place, Quoted, Setting
from tailrace.diagnose.observed.vocabulary import QUANTITIES
from tailrace.diagnose.readers.cells import read_cell
from tailrace.diagnose.readers.heading import heading, snake
from tailrace.diagnose.readers.roles import with_roles
from tailrace.diagnose.readers.table_arms import CONDITIONS, placed, quoted

__all__ = ["arms_in_facts", "fact_into", "flat_facts"]

_BOUNDS: Final = re.compile(
    r"target|slo\b|sla\b|limit|object|budget|expect|predict|timeout|deadline|capacity|threshold|max\b|min\b|interval|"
    r"per\b|total|window|lifetime|count|at$|cap\b|alone$|mean of|other",
    re.IGNORECASE,
)
"""Words behind which a number is promised, configured or of something else: no second measurement of one thing."""
_SIDES: Final = re.compile(
    r"\b(?:before|after|old|new|with|without|no|short|long|small|large|on|off|enabled|disabled|baseline|now|then|prev|"
    r"previous|idle|busy|back|cold|warm|alone|shared|plain|bf16|fp16|fp8|fp4|int4|int8|awq|gptq|nvfp4|w4a16|schema|json|"
    r"grammar|free|structured|first|last|poisson|constant|even|paced|burst|bursty|direct|via|eager|graphs?|quantized|"
    r"unquantized|disaggregated|colocated|chunked|mon|tue|wed|thu|fri|sat|sun|yesterday|today|monday|tuesday|wednesday|"
    r"thursday|friday|v\d+|stock|patched|control|canary|main|branch)\b",
    re.IGNORECASE,
)
_ARROW: Final = re.compile(r"\s*(?:->|→|=>|⇒| to )\s*")
_FEW: Final = 12
_OWN: Final = {
    "tok_s": "output_tok_s",
    "hit_pct": "prefix_hit",
    "completed_rps": "completed_rps",
    "rel_speed": "rel_speed",
}
_MOST_DEPTH: Final = 6
_DOT: Final = re.compile(r"\.(?!\d)")
"""Between the names of a path; `p99.9` is one word."""
_TIMES: Final = frozenset(
    {
        "ttft", "tpot", "itl", "e2e", "queue", "prefill", "chunk_gap", "output_tok_s", "decode_tok_s", "prompt_tok_s",
        "req_s",
    }
)  # fmt: skip
"""What an arm is compared by: without one of these there is nothing to compare."""


def arms_in_facts(settings: list[Setting], place: Place) -> list[Arm]:
    """The arms of a context: of equally long lists, else of keys that differ in the words of a condition only."""
    return _of_lists(settings, place) or _of_words(settings, place)


# -- lists


def _numbers(value: object) -> list[float]:
    """The numbers of a list, or of `21 -> 33.9`; empty where it is neither."""
    if isinstance(value, list):
        if value and all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in value):
            return [float(one) for one in value]
        return []
    if isinstance(value, str) and len(value) < 80:
        cells = [read_cell(part) for part in _ARROW.split(value.strip())]
        if len(cells) > 1 and all(cell.value is not None and cell.high is None for cell in cells):
            return [cell.value for cell in cells if cell.value is not None]
    return []


def _of_lists(settings: list[Setting], place: Place) -> list[Arm]:
    """Several lists of one length: the first condition among them names the arms. Two numbers may be a range; they are
    two arms where something is said to have changed, or where a condition goes along.
    """
    lists = [(item, values) for item in settings if len(values := _numbers(item.value)) > 1]
    for length in sorted({len(values) for _, values in lists}, reverse=True):
        group = [(item, values) for item, values in lists if len(values) == length and length <= _FEW]
        heads = [heading(item.name.rsplit(".", 1)[-1]) for item, _ in group]
        if len(group) < 2 or not any(head.quantity in _TIMES for head in heads):
            continue
        conditions = [n for n, head in enumerate(heads) if head.quantity in CONDITIONS]
        what = next((str(item.value) for item in settings if item.name in ("changed", "change")), "")
        arrows = any(isinstance(item.value, str) for item, _ in group)
        varies = [n for n in conditions if len(set(group[n][1])) == length]
        compared = what or varies or arrows or any(item.name in ("same", "equal", "unchanged") for item in settings)
        if length == 2 and not compared:
            continue
        return with_roles(_columns(group, _names(group, varies, what, length), place))
    return []


def _names(group: list[tuple[Setting, list[float]]], varies: list[int], what: str, length: int) -> list[str]:
    parts = [part.strip() for part in _ARROW.split(what)]
    if varies:
        item, values = group[varies[0]]
        return [f"{item.name.replace('_', ' ')} {value:g}" for value in values]
    if len(parts) == length:
        return [f"before: {parts[0]}", f"after: {parts[1]}"] if length == 2 else parts
    return ["before", "after"] if length == 2 else [f"row {n + 1}" for n in range(length)]


def _columns(group: list[tuple[Setting, list[float]]], names: list[str], place: Place) -> list[Arm]:
    out = []
    for n, name in enumerate(names):
        keys: dict[str, float | str] = {}
        values: dict[str, Quoted] = {}
        for item, numbers in group:
            _put(keys, values, item.name, numbers[n], place)
        out.append(Arm(name=name, label=name, keys=keys, values=values, place=place))
    return out


def _put(
    keys: dict[str, float | str],
    values: dict[str, Quoted],
    key: str,
    value: float,
    place: Place,
    words: Callable[[str], str] | None = None,
) -> None:
    head = heading(key.rsplit(".", 1)[-1])
    if words is not None:
        head = msgspec.structs.replace(head, qualifier=words(head.qualifier))
    item = quoted(head, read_cell(repr(value)), place, percent="pct" in key or "percent" in key)
    if item is None or head.change:
        return
    placed(values, msgspec.structs.replace(item, value=item.value, label=key))
    if item.quantity in CONDITIONS and not item.stat:
        keys[item.quantity] = item.value


# -- words


def _of_words(settings: list[Setting], place: Place) -> list[Arm]:
    """Keys that name one quantity in one statistic and differ in their other words, which name the arms."""
    told: dict[str, list[tuple[Setting, str]]] = {}
    for item in settings:
        if item.number is None or isinstance(item.value, list):
            continue
        head = heading(item.name.rsplit(".", 1)[-1])
        words = head.qualifier
        if head.quantity in QUANTITIES and words and _SIDES.search(words) and not _BOUNDS.search(words):
            told.setdefault(f"{head.quantity}.{head.stat}", []).append((item, words))
    several = {key: items for key, items in told.items() if len({words for _, words in items}) > 1}
    if not any(key.split(".")[0] in _TIMES for key in several):
        return []
    names = list(dict.fromkeys(words for items in several.values() for _, words in items))
    if not 2 <= len(names) <= _FEW:
        return []
    out = []
    for name in names:
        keys: dict[str, float | str] = {}
        values: dict[str, Quoted] = {}
        for items in told.values():
            for item, words in items:
                if words == name and item.number is not None:
                    _put(keys, values, item.name, item.number, place, words=lambda _: "")
        out.append(Arm(name=name, label=name, keys=keys, values=values, place=place))
    return with_roles(out)


# -- one fact


def flat_facts(key: str, value: Any, depth: int = 0) -> list[tuple[str, Any]]:
    """(path, value) of what nested facts hold."""
    if isinstance(value, dict) and depth < _MOST_DEPTH:
        return [pair for name, one in value.items() for pair in flat_facts(f"{key}.{name}", one, depth + 1)]
    if isinstance(value, str):
        cell = read_cell(value)
        # "2 s" says a number; "1.3.9 -> 1.4.3" says a text.
        return [(key, cell.value if cell.value is not None and cell.high is None and not cell.unit else value)]
    return [(key, value)]


def fact_into(keys: dict[str, float | str], values: dict[str, Quoted], key: str, value: Any, place: Place) -> None:
    """One fact under its key, as a number of an arm, or as a condition where it is none."""
    head = heading(_DOT.sub(" ", key))
    own = _OWN.get(snake(key))
    if own is not None:
        head = msgspec.structs.replace(head, quantity=own if own != snake(key) else head.quantity, stat="")
    high = None
    if isinstance(value, list) and len(value) == 2 and all(_is_number(one) for one in value):
        value, high = value
    cell = read_cell(str(value)) if _is_number(value) or isinstance(value, str) else None
    if cell is None or cell.value is None:
        keys[snake(key)] = str(value)
        return
    level = float(value) if isinstance(value, int | float) and _is_number(value) else cell.value
    cell = msgspec.structs.replace(cell, value=level, high=high or cell.high)
    item = quoted(head, cell, place, percent="pct" in key.lower() or "percent" in key.lower())
    if item is None:
        return
    placed(values, msgspec.structs.replace(item, label=key))
    if item.quantity in CONDITIONS and not item.stat:
        keys[item.quantity] = item.value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
