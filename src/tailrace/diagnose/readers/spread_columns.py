"""Tables in which one measurement is spread over several columns: repeated runs side by side, two paths side by side.

`| path | run 1 (s) | run 2 (s) |`, `| # | direct (s) | via proxy (s) |`, `| clients | TTFT direct | TTFT via proxy |`
hold one kind of number each. They are turned into a row a measurement, which is what the rules compare; what the
numbers are is said above the table where no heading says it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from tailrace.diagnose.observed.vocabulary import QUANTITIES, TO_MS, phrase_in
from tailrace.diagnose.readers.cells import read_cell
from tailrace.diagnose.readers.grids import Grid
from tailrace.diagnose.readers.heading import Heading, heading, plain, statistic
from tailrace.diagnose.readers.units import unit_of

__all__ = ["told_quantity", "unspread"]

_RUN: Final = re.compile(
    r"^(?P<before>.*?)\b(?:run|trial|attempt|request|req|repeat|rep|try|iteration|iter|sample|turn|call|round|#)"
    r"\s?[#_-]?\s?(?P<number>\d{1,3})\b(?P<after>.*)$|^\s*#?(?P<bare>\d{1,3})\s*(?P<unit>\(.{1,8}\))?\s*$",
    re.IGNORECASE,
)
_INDEX: Final = re.compile(
    r"^(?:#|no|nr|idx|index|i|run|trial|attempt|request|req|try|call|iteration|sample|rep|repeat|round|seq)"
    r"(?:\s?(?:#|no|nr|number|id|s))?$",
    re.IGNORECASE,
)
_DIRECT: Final = re.compile(r"\b(?:direct|directly|bare|native|without|no[ -](?:proxy|gateway|hop))\b", re.IGNORECASE)
_VIA: Final = re.compile(
    r"\b(?:via|through|proxy|proxied|gateway|router|ingress|behind|litellm|envoy|nginx|kong|haproxy|traefik|istio|"
    r"with[ -](?:proxy|gateway|hop))\b",
    re.IGNORECASE,
)
_LIST: Final = re.compile(r"^[\[(]?\s*\d+(?:\.\d+)?(?:(?:\s*[,;/])?\s+\d+(?:\.\d+)?)+\s*[\])]?$")
"""Numbers with blanks between: without blanks a comma groups the digits of one."""
_SPLIT: Final = re.compile(r"\s*[,;/]\s*|\s+")
_FEWEST: Final = 3
"""Two columns with a number in their heading may be two of anything."""
_WANTED: Final = ("ttft", "tpot", "itl", "e2e", "queue", "prefill", "chunk_gap")
_PACE: Final = frozenset({"end to end", "end-to-end", "e2e"})


def told_quantity(text: str) -> tuple[str, str]:
    """(`ttft`, `p50`) of a line above a table: the duration that its words name, and their statistic; empty where they
    name none, or two.
    """
    words = re.sub(r"[^\w\s/%.]+", " ", plain(text).lower().replace("-", " ").replace("_", " ")).split()
    found: dict[str, str] = {}
    stats = [stat for word in words if (stat := statistic(word)) and not word.startswith(("min", "max", "best"))]
    rest = words
    while (phrase := phrase_in(rest)) is not None:
        known, first, behind = phrase
        if known.name in _WANTED:
            found[known.name] = known.name
        rest = [*rest[:first], "|", *rest[behind:]]
    if not found and any(word in " ".join(words) for word in _PACE):
        found["e2e"] = "e2e"
    if len(found) > 1:
        found.pop("e2e", None)  # `latency to the first token`
    return (next(iter(found)), stats[0] if len(stats) == 1 else "") if len(found) == 1 else ("", "")


def unspread(grid: Grid) -> Grid:
    """The same numbers with a row each; the table itself where nothing is spread."""
    for form in (_runs, _listed, _indexed, _paths, _unnamed):
        made = form(grid)
        if made is not None:
            return made
    return grid


def _columns(grid: Grid) -> list[Heading]:
    return [heading(name) for name in grid.header]


def _are_metrics(grid: Grid) -> bool:
    return any(heading(row[0]).quantity in QUANTITIES and read_cell(row[0]).value is None for row in grid.rows)


def _name(quantity: str, stat: str, unit: str) -> str:
    """A heading of that quantity, as the vocabulary reads it."""
    return " ".join(filter(None, (quantity.replace("_", " "), stat, f"({unit})" if unit else "")))


def _melted(grid: Grid, kept: list[int], spread: list[int], label: str, told: Callable[[int], str], value: str) -> Grid:
    """A row for each cell of the columns `spread`, with the columns `kept` before it."""
    rows, lines = [], []
    for row, line in zip(grid.rows, grid.lines, strict=True):
        for place in spread:
            if read_cell(row[place]).value is None:
                continue
            rows.append([*(row[at] for at in kept), told(place), row[place]])
            lines.append(line)
    header = [*(grid.header[at] for at in kept), label, value]
    return msgspec.structs.replace(grid, header=header, rows=rows, lines=lines)


# -- repeated runs, side by side


def _runs(grid: Grid) -> Grid | None:
    """`| path | run 1 (s) | run 2 (s) | ... |`: a row a run."""
    found = {place: match for place, name in enumerate(grid.header) if (match := _RUN.match(plain(name)))}
    spread = [place for place in found if place]
    if len(spread) < _FEWEST or not grid.rows or _are_metrics(grid):
        return None
    numbers = [int(found[place]["number"] or found[place]["bare"]) for place in spread]
    rests = {
        " ".join(f"{found[place]['before'] or ''} {found[place]['after'] or found[place]['unit'] or ''}".split())
        for place in spread
    }
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))) or numbers[0] > 1 or len(rests) > 1:
        return None
    head = heading(next(iter(rests)))
    value = head.label if head.quantity else ""
    if not value:
        corner = grid.header[0] if heading(grid.header[0]).quantity else grid.caption
        quantity, stat = told_quantity(corner)
        if not quantity:
            return None
        value = _name(quantity, head.stat or stat, head.unit)
    kept = [place for place in range(len(grid.header)) if place not in spread and not _summarises(grid.header[place])]
    number = dict(zip(spread, numbers, strict=True))
    return _melted(grid, kept, spread, "run", lambda place: f"run {number[place]}", value)


def _summarises(name: str) -> bool:
    """`mean`, `avg (s)`: of the runs beside it."""
    head = heading(name)
    return not head.quantity and any(statistic(word) for word in re.split(r"[\s()]+", plain(name)) if word)


def _listed(grid: Grid) -> Grid | None:
    """`| path | TTFT of each request (s) |` over `0.41, 0.43, 6.1`: a row a number."""
    for place, name in enumerate(grid.header):
        cells = [plain(row[place]).removesuffix(" s").removesuffix(" ms") for row in grid.rows]
        lists = [_is_list(cell) for cell in cells]
        if not place or not cells or not all(lists):
            continue
        head = heading(name)
        quantity, stat = (head.quantity, head.stat) if head.quantity else told_quantity(grid.caption)
        if quantity not in _WANTED:
            continue
        unit = head.unit or next((u for u in ("ms", "s") if plain(grid.rows[0][place]).endswith(f" {u}")), "")
        rows, lines = [], []
        for row, line, cell in zip(grid.rows, grid.lines, cells, strict=True):
            for number, part in enumerate(_parts(cell), start=1):
                rows.append([*row[:place], f"run {number}", part])
                lines.append(line)
        header = [*grid.header[:place], "run", _name(quantity, stat, unit)]
        return msgspec.structs.replace(grid, header=header, rows=rows, lines=lines)
    return None


def _is_list(cell: str) -> bool:
    one = any(read_cell(cell, comma=comma).value is not None for comma in (False, True))
    return not one and _LIST.match(cell) is not None and len(_parts(cell)) >= _FEWEST


def _parts(cell: str) -> list[str]:
    return [part for part in _SPLIT.split(cell.strip("[]() ")) if part]


def _indexed(grid: Grid) -> Grid | None:
    """`| # | direct (s) | via proxy (s) |`: the rows are runs, the columns the paths."""
    if len(grid.header) < 3 or len(grid.rows) < _FEWEST or not _INDEX.match(plain(grid.header[0])):
        return None
    heads = _columns(grid)[1:]
    if any(head.quantity or head.stat for head in heads):
        return None
    quantity, stat = told_quantity(grid.caption)
    units = {head.unit for head in heads}
    if not quantity or len(units) > 1 or not _sides([head.label for head in heads]):
        return None
    unit = next(iter(units))
    names = {place: _without_unit(grid.header[place]) for place in range(1, len(grid.header))}
    kept = [0]
    melted = _melted(grid, kept, list(names), "path", lambda place: names[place], _name(quantity, stat, unit))
    rows = [[row[1], f"run {row[0]}", row[2]] for row in melted.rows]
    return msgspec.structs.replace(melted, header=["path", "run", melted.header[2]], rows=rows)


# -- two paths, side by side


def _sides(labels: list[str]) -> bool:
    """Whether some of the labels are the way straight to the engine, and all others a way through something."""
    direct = [bool(_DIRECT.search(label)) for label in labels]
    via = [bool(_VIA.search(label)) and not straight for label, straight in zip(labels, direct, strict=True)]
    return any(direct) and any(via) and all(a or b for a, b in zip(direct, via, strict=True))


def _without_unit(name: str) -> str:
    return re.sub(r"\s*[(\[][^)\]]*[)\]]", lambda m: "" if unit_of(m[0].strip(" ()[]")) else m[0], plain(name)).strip()


def _paths(grid: Grid) -> Grid | None:
    """`| concurrency | TTFT p50 direct (ms) | TTFT p50 via proxy (ms) |`: a row a path, with all that it has."""
    if len(grid.header) < 3 or any(read_cell(row[0]).value is None for row in grid.rows):
        return None
    heads = _columns(grid)
    told = told_quantity(grid.caption)
    sides: dict[str, list[tuple[int, str]]] = {}
    for place, head in enumerate(heads[1:], start=1):
        words = _without_unit(grid.header[place])
        if not _DIRECT.search(words) and not _VIA.search(words):
            continue
        if head.quantity in QUANTITIES and head.qualifier:
            side, quantity, stat = head.qualifier, head.quantity, head.stat
        elif told[0] and head.unit in TO_MS and head.quantity in {"", "e2e"}:
            side = " ".join(word for word in words.split() if not statistic(word)) or words
            quantity, stat = told[0], head.stat or told[1]
        else:
            return None
        sides.setdefault(side, []).append((place, _name(quantity, stat, head.unit)))
    names = [[name for _, name in columns] for columns in sides.values()]
    if len(sides) < 2 or not _sides(list(sides)) or any(one != names[0] for one in names):
        return None
    taken = {place for columns in sides.values() for place, _ in columns}
    kept = [place for place in range(len(grid.header)) if place not in taken]
    rows, lines = [], []
    for row, line in zip(grid.rows, grid.lines, strict=True):
        for side, columns in sides.items():
            rows.append([side, *(row[at] for at in kept), *(row[place] for place, _ in columns)])
            lines.append(line)
    # The first column is what was chosen, not what came out.
    chosen = ["offered rps" if heads[at].quantity == "req_s" and not at else grid.header[at] for at in kept]
    header = ["path", *chosen, *names[0]]
    return msgspec.structs.replace(grid, header=header, rows=rows, lines=lines)


# -- what no heading says


def _unnamed(grid: Grid) -> Grid | None:
    """`| clients | p50 (s) | p99 (s) |` below `TTFT by number of clients`: the line above says what they are of."""
    quantity, stat = told_quantity(grid.caption)
    if not quantity or any(head.quantity in _WANTED for head in _columns(grid)) or _are_metrics(grid):
        return None
    header = list(grid.header)
    for place, head in enumerate(_columns(grid)):
        if not place or head.quantity or head.change:
            continue
        words = [word for word in re.split(r"[\s(),\[\]_]+", plain(head.label)) if word]
        if words and all(statistic(word) or unit_of(word) in TO_MS for word in words) and (head.stat or head.unit):
            header[place] = _name(quantity, head.stat or stat, head.unit)
    return msgspec.structs.replace(grid, header=header) if header != grid.header else None
