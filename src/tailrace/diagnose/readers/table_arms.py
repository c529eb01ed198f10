"""A table becomes arms: one a row, one a column where the rows are metrics, one in all where they are statistics."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import Final

import msgspec

from tailrace.diagnose.observed import Arm, Place, Quoted
from tailrace.diagnose.observed.vocabulary import QUANTITIES, TO_MS, in_unit
from tailrace.diagnose.readers.cells import Cell, decimal_comma, dots_are_thousands, read_cell
from tailrace.diagnose.readers.grids import Grid
from tailrace.diagnose.readers.heading import Heading, heading, in_cell, plain, snake, statistic
from tailrace.diagnose.readers.roles import with_roles
from tailrace.diagnose.readers.table_shapes import plain_shape
from tailrace.diagnose.readers.units import unit_of
from tailrace.diagnose.readers.unnamed_latencies import with_latencies

__all__ = ["CONDITIONS", "arms_of", "placed", "quoted"]

CONDITIONS: Final = frozenset(
    {
        "concurrency", "offered_rps", "replicas", "sessions", "prompt_tokens", "output_tokens", "max_num_seqs",
        "max_num_batched_tokens", "max_model_len", "tensor_parallel", "data_parallel", "kv_capacity_tokens",
        "power_limit",
    }
)  # fmt: skip
"""Quantities that are chosen, not measured: they name an arm as well as its label does."""
_METRIC_WORDS: Final = frozenset(
    {"metric", "metrics", "measure", "measurement", "quantity", "kpi", "statistic", "name"}
)
_VALUE_WORDS: Final = frozenset({"value", "values", "result", "results", "measured", "run", ""})
_UNIT_WORDS: Final = frozenset({"unit", "units"})
_STAT_WORDS: Final = frozenset({"stat", "stats", "statistic", "percentile", "aggregation"})
_DURATION_WORDS: Final = re.compile(
    r"\b(?:times?|latenc\w+|values?|numbers|durations?|everything|all)\b[^.]{0,40}"
    r"\bin (ms|milliseconds|s|seconds|us|µs)\b"
    r"|\b(?:all|everything|numbers|values|times|latencies)\s(?:are\s)?(ms|milliseconds|seconds|us|µs)\b",
    re.IGNORECASE,
)
_LONGEST_WORDS: Final = 100
"""They are shorter."""
_UNIT_SAID: Final = re.compile(r"\W*(?:unit|units)\W+(ms|s|us|µs|seconds|milliseconds)\b", re.IGNORECASE)


class _Column(msgspec.Struct, kw_only=True):
    """A column read: its heading and its cells."""

    head: Heading
    cells: list[Cell]
    text: bool
    """It holds words: more cells that are no number than cells that are."""
    percents: bool
    """Shares without a unit are percent: one is above 1.5."""


def arms_of(grid: Grid, source: str, *, named: str = "", context: str = "") -> list[Arm]:
    """The arms of a table. `named` is the name of an arm that nothing else names; `context` is text around the table,
    which may say a unit for all of it.
    """
    grid = plain_shape(grid)
    thousands = any(dots_are_thousands(text) for row in grid.rows for text in row)
    columns = [_column(grid, place, thousands=thousands) for place in range(len(grid.header))]
    columns = _without_index(columns)
    if not columns or not grid.rows:
        return []
    default = _default_unit(grid.caption, context)
    first = columns[0]
    if _are_statistics(first):
        arms = _of_statistics(grid, columns, source, named, default)
    elif _are_metrics(columns):
        arms = _of_metrics(grid, columns, source, named, default)
    elif tidy := _tidy(columns):
        arms = _of_tidy(grid, columns, tidy, source, named, default)
    else:
        arms = _of_rows(grid, columns, source, default)
    return with_roles(with_latencies([_by_test(arm) for arm in arms], grid.caption, named))


_TEST: Final = re.compile(r"(?:pp(\d+))?\s?\+?\s?(?:tg(\d+))?(?:\s?@\s?d\d+)?")


def _by_test(arm: Arm) -> Arm:
    """llama-bench tells in a column which of two things its rate is of: `pp512` reads a prompt, `tg128` decodes."""
    found = _TEST.fullmatch(str(arm.keys.get("test", "")))
    rate = arm.values.get("output_tok_s")
    if found is None or rate is None or bool(found[1]) == bool(found[2]):
        return arm
    name = "prompt_tok_s" if found[1] else "decode_tok_s"
    values = {key: item for key, item in arm.values.items() if key != "output_tok_s"}
    length = ("prompt_tokens", float(found[1])) if found[1] else ("output_tokens", float(found[2]))
    return msgspec.structs.replace(
        arm,
        keys={**arm.keys, length[0]: length[1]},
        values={name: msgspec.structs.replace(rate, quantity=name), **values},
    )


def _column(grid: Grid, place: int, *, thousands: bool) -> _Column:
    texts = [row[place] for row in grid.rows]
    comma = decimal_comma(texts) or (grid.decimal_comma and any("," in text for text in texts))
    comma = comma or thousands
    cells = [read_cell(text, comma=comma) for text in texts]
    numbers = [cell.value for cell in cells if cell.value is not None]
    words = sum(1 for cell in cells if cell.value is None and not cell.missing)
    return _Column(
        head=heading(grid.header[place]),
        cells=cells,
        text=words > len(numbers),
        percents=any(value > 1.5 for value in numbers),
    )


def _without_index(columns: list[_Column]) -> list[_Column]:
    """A first column without heading that counts 0, 1, 2 … is a data frame's index."""
    first = columns[0]
    counted = [cell.value for cell in first.cells]
    if len(columns) > 1 and not first.head.label and counted == list(map(float, range(len(counted)))):
        return columns[1:]
    return columns


def _default_unit(caption: str, context: str) -> str:
    """What the words before a table say first; those around all tables are searched once."""
    said = _UNIT_SAID.match(f"{caption} {context}")
    if said is not None:
        return unit_of(said[1])
    found = _DURATION_WORDS.search(f"{caption} {context[:_LONGEST_WORDS]}")
    if found is not None and found.start() <= len(caption):
        return unit_of(found[1] or found[2])
    return _told_around(context)


@lru_cache(maxsize=16)
def _told_around(context: str) -> str:
    found = _DURATION_WORDS.search(context)
    return unit_of(found[1] or found[2]) if found else ""


# -- one number


def quoted(
    head: Heading,
    cell: Cell,
    place: Place,
    *,
    unit: str = "",
    stat: str = "",
    relative: bool = False,
    percent: bool = False,
) -> Quoted | None:
    """The number of a cell under a heading, in the unit of its quantity. `unit` holds where neither says one;
    `percent`: a share without unit is one in percent.
    """
    if cell.value is None:
        return None
    if cell.unit and not head.unit:
        head = in_cell(head, cell.unit)
    said = cell.unit or head.unit
    known = QUANTITIES.get(head.quantity)
    name = head.key
    stat = head.stat or stat
    scale_to = known.unit if known else ""
    if relative or _is_change(head, cell, said, scale_to):
        value = (cell.value - 1.0) * 100.0 if said == "x" else cell.value
        return Quoted(
            quantity=name, stat=stat, value=value, high=cell.high, unit="%", relative=True,
            qualifier=head.qualifier, label=head.label, place=place,
        )  # fmt: skip
    if not said and scale_to in {"ms", "s"}:
        said = unit
    if scale_to == "share" and not said and percent:
        said = "%"
    if not said and scale_to and scale_to not in {"ms", "s"} and not (name == "req_s" and _bare(head)):
        said = scale_to
    value, high, kept = cell.value, cell.high, said
    if scale_to and said:
        moved = in_unit(cell.value, said, scale_to)
        if moved is not None:
            value, kept = moved, scale_to
            high = None if cell.high is None else in_unit(cell.high, said, scale_to)
    return Quoted(
        quantity=name, stat=stat, value=value, high=high, unit=kept,
        qualifier=" ".join(filter(None, (head.qualifier, cell.note))), label=head.label, place=place,
    )  # fmt: skip


def _bare(head: Heading) -> bool:
    """`Throughput` without a unit: of requests or of tokens."""
    return not head.unit and "throughput" in head.label.lower() and "req" not in head.label.lower()


def _is_change(head: Heading, cell: Cell, unit: str, canonical: str) -> bool:
    if unit == "%":
        return head.change or canonical not in {"share", ""} or (cell.signed and canonical != "share")
    return unit == "x" and canonical in {"ms", "s", "tok/s", "1/s"}


def placed(values: dict[str, Quoted], item: Quoted) -> None:
    """Put a number among an arm's values; a second one with the same key has its qualifier in the key."""
    key = item.key
    if key in values or (item.quantity == "concurrency" and _OF_REPLICA.search(item.label)):
        extra = item.qualifier or ("change" if item.relative else item.label)
        key, base = f"{key}@{extra}", key
        if item.relative is False and base in values and values[base].relative:
            # The level goes by the plain key, its change beside it.
            change = values.pop(base)
            values[f"{base}@{change.qualifier or 'change'}"] = change
            key = base
    values.setdefault(key, item)


def _add(
    keys: dict[str, float | str],
    values: dict[str, Quoted],
    head: Heading,
    cell: Cell,
    place: Place,
    *,
    unit: str,
    stat: str = "",
    relative: bool = False,
    percent: bool = False,
) -> None:
    item = quoted(head, cell, place, unit=unit, stat=stat, relative=relative, percent=percent)
    if item is None:
        if not cell.missing:
            keys.setdefault(head.key or "label", cell.text)
        return
    placed(values, item)
    if cell.change is not None and not item.relative:
        placed(
            values,
            msgspec.structs.replace(item, value=cell.change, high=None, unit="%", relative=True, qualifier="change"),
        )
    if item.quantity in CONDITIONS and not item.relative and not item.stat and not _OF_REPLICA.search(item.label):
        keys.setdefault(item.quantity, item.value)


# -- rows are arms


def _of_rows(grid: Grid, columns: list[_Column], source: str, unit: str) -> list[Arm]:
    labels = next((place for place, column in enumerate(columns) if column.text), 0)
    named = columns[labels]
    arms = []
    for row, line in enumerate(grid.lines):
        place = Place(source, line)
        keys: dict[str, float | str] = {}
        values: dict[str, Quoted] = {}
        for at, column in enumerate(columns):
            cell = column.cells[row]
            if at == labels and cell.value is not None and not column.text:
                # A sweep: the first column is the condition, whatever it is called.
                item = quoted(column.head, cell, place, unit=unit, percent=column.percents)
                if item is not None:
                    keys[item.quantity] = item.value
            if column.text:
                if not cell.missing:
                    keys.setdefault(column.head.key or "label", cell.text)
                continue
            _add(keys, values, column.head, cell, place, unit=unit, percent=column.percents)
        if not keys and not values:
            continue
        label = named.cells[row].text
        name = label if named.text else f"{re.sub(r'[(].*?[)]', '', named.head.label).strip()} {label}".strip()
        arms.append(Arm(name=name or f"row {row + 1}", label=label, keys=keys, values=values, place=place))
    return _unique(arms)


def _unique(arms: list[Arm]) -> list[Arm]:
    """Arms of one name get the conditions that tell them apart."""
    names = Counter(arm.name for arm in arms)
    if len(names) == len(arms):
        return arms
    differing = [
        key
        for key in dict.fromkeys(key for arm in arms for key in arm.keys)
        if len({str(arm.keys.get(key)) for arm in arms}) > 1
    ]
    out: list[Arm] = []
    seen: dict[str, int] = {}
    for arm in arms:
        name = arm.name
        if names[name] > 1:
            extra = [
                _told(key, arm.keys[key]) for key in differing if key in arm.keys and str(arm.keys[key]) != arm.label
            ]
            name = ", ".join([name, *extra])
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            name = f"{name} ({seen[name]})"
        out.append(msgspec.structs.replace(arm, name=name))
    return out


def _told(key: str, value: float | str) -> str:
    return value if isinstance(value, str) else f"{key.replace('_', ' ')} {value:g}"


# -- rows are metrics


def _are_metrics(columns: list[_Column]) -> bool:
    first = columns[0]
    if len(columns) < 2 or not first.text:
        return False
    told = [heading(cell.text).quantity for cell in first.cells]
    known = sum(1 for name in told if name)
    over = sum(1 for column in columns[1:] if column.head.quantity and not column.head.change)
    if not first.head.label and known > 1 and all(column.head.qualifier for column in columns[1:]):
        return True  # `normal clients`, `mobile clients` over rows of latencies: kinds of them, no numbers of them
    if first.head.label.lower() in _METRIC_WORDS:
        return known > 0 and over <= known
    return known >= max(1, 0.6 * len(told)) and over * len(told) < known * (len(columns) - 1)


def _of_metrics(grid: Grid, columns: list[_Column], source: str, named: str, unit: str) -> list[Arm]:
    units = next((c for c in columns[1:] if c.head.label.lower() in _UNIT_WORDS), None)
    stats = next((c for c in columns[1:] if c.head.label.lower() in _STAT_WORDS), None)
    made: dict[str, tuple[dict[str, float | str], dict[str, Quoted]]] = {}
    rows = [heading(cell.text) for cell in columns[0].cells]
    for column in columns[1:]:
        if column is units or column is stats:
            continue
        label = _arm_label(column.head)
        keys, values = made.setdefault(label, ({}, {}))
        relative = _relative_column(column)
        for row, line in enumerate(grid.lines):
            head = rows[row]
            said = unit_of(units.cells[row].text) if units else column.head.unit if not relative else ""
            if said and not head.unit:
                head = msgspec.structs.replace(head, unit=said)
            stat = statistic(stats.cells[row].text) if stats else column.head.stat
            cell = column.cells[row]
            percent = cell.value is not None and cell.value > 1.5
            _add(
                keys, values, head, cell, Place(source, line), unit=unit, stat=stat, relative=relative, percent=percent
            )
    label, key = _from_caption(grid.caption)
    corner = columns[0].head.label
    arms = []
    for name, (keys, values) in made.items():
        own = name or label or named or "table"
        if name and len(corner.split()) > 1:
            keys.setdefault(snake(corner), name)  # `after the client closed` above `1 s | 5 s`
        if key and label and not name:
            keys.setdefault(key, label)
        if values or keys:
            arms.append(Arm(name=own, label=own, keys=keys, values=values, place=Place(source, grid.lines[0])))
    return _unique(arms)


def _arm_label(head: Heading) -> str:
    """What a column of a table of metrics is called, without its statistic and unit; empty for `value`."""
    words = head.label
    words = re.sub(
        r"[(\[]\s*(?:[^)\]]{1,12})\s*[)\]]",
        lambda m: "" if unit_of(m[0][1:-1].strip()) or statistic(m[0][1:-1]) else m[0],
        words,
    )
    if head.stat:
        if " " not in words and not head.quantity:
            words = words.replace("_", " ")  # `p99_ms_before`
        words = " ".join(word for word in words.split() if statistic(word) != head.stat and unit_of(word) not in TO_MS)
    words = words.strip(" :,")
    return "" if words.lower() in _VALUE_WORDS else words


def _relative_column(column: _Column) -> bool:
    if column.head.change and not column.head.quantity:
        cells = [cell for cell in column.cells if cell.value is not None]
        return column.head.unit in {"%", "x"} or (bool(cells) and all(cell.unit in {"%", "x"} for cell in cells))
    if column.head.unit == "%" and not column.head.quantity:
        return True
    signed = [cell for cell in column.cells if cell.value is not None]
    return bool(signed) and all(cell.unit == "%" and cell.signed for cell in signed)


# -- rows are statistics: `describe()` of a data frame


_OF_REPLICA: Final = re.compile(
    r"(?:\b|_)(?:(?:replica|worker|engine|pod|instance|node|gpu|backend|server|rank)[ _#-]?\d+|[rw]\d+)\b",
    re.IGNORECASE,
)
"""What one replica has in flight is no load that an arm was given."""
_OF_REQUESTS: Final = frozenset({"id", "req", "request", "request_id", "req_id", "query", "prompt", "turn", "session"})


def _are_statistics(first: _Column) -> bool:
    told = [statistic(cell.text) for cell in first.cells]
    known = [stat for stat in told if stat]
    if snake(first.head.label) in _OF_REQUESTS:
        return False  # `q1`, `p5`: somebody's names of requests
    return (
        len(known) >= 2
        and len(known) >= 0.6 * len(told)
        and not any(heading(cell.text).quantity not in {"", "n"} for cell in first.cells)
    )


def _of_statistics(grid: Grid, columns: list[_Column], source: str, named: str, unit: str) -> list[Arm]:
    label, key = _from_caption(grid.caption)
    own = label or named or "table"
    keys: dict[str, float | str] = {key: label} if key and label else {}
    values: dict[str, Quoted] = {}
    counts = []
    for column in columns[1:]:
        for row, line in enumerate(grid.lines):
            name = columns[0].cells[row].text
            stat, cell, place = statistic(name), column.cells[row], Place(source, line)
            if stat:
                head = msgspec.structs.replace(column.head, stat=stat)
                _add(keys, values, head, cell, place, unit=unit, percent=column.percents)
            elif cell.value is not None and heading(name).quantity == "n":
                counts.append(cell.value)
            elif not cell.missing:
                keys.setdefault(f"{column.head.key}.{snake(name)}", cell.text)
    if counts:
        # The fewest: what each of the numbers rests on at least.
        values["n"] = Quoted(
            quantity="n", value=min(counts), unit="count", label="count", place=Place(source, grid.lines[0])
        )
    return [Arm(name=own, label=own, keys=keys, values=values, place=Place(source, grid.lines[0]))]


def _from_caption(caption: str) -> tuple[str, str]:
    """(label, key) of `backend: outlines` or `backend = outlines`; a caption without sign is the label itself."""
    found = re.match(r"^([\w .\-]{1,40}?)\s*[:=]\s*(.{1,80})$", plain(caption))
    if found is not None:
        return found[2].strip(), snake(found[1])
    return caption if len(caption) <= 60 else "", ""


# -- rows are numbers: arm, metric, value


def _tidy(columns: list[_Column]) -> tuple[int, int] | None:
    """(column of the metric's name, column of the value) of a table with one number a row."""
    metric = next((n for n, c in enumerate(columns) if c.head.label.lower() in _METRIC_WORDS and c.text), None)
    value = next((n for n, c in enumerate(columns) if c.head.label.lower() in _VALUE_WORDS - {""} and not c.text), None)
    if metric is None or value is None:
        return None
    return metric, value


def _of_tidy(
    grid: Grid, columns: list[_Column], tidy: tuple[int, int], source: str, named: str, unit: str
) -> list[Arm]:
    metric, value = tidy
    units = next((n for n, c in enumerate(columns) if c.head.label.lower() in _UNIT_WORDS), None)
    stats = next((n for n, c in enumerate(columns) if c.head.label.lower() in _STAT_WORDS and n != metric), None)
    others = [n for n in range(len(columns)) if n not in {metric, value, units, stats}]
    made: dict[tuple[str, ...], tuple[dict[str, float | str], dict[str, Quoted], Place]] = {}
    for row, line in enumerate(grid.lines):
        place = Place(source, line)
        group = tuple(columns[n].cells[row].text for n in others)
        keys, values, _ = made.setdefault(group, ({}, {}, place))
        for n in others:
            cell = columns[n].cells[row]
            keys.setdefault(columns[n].head.key, cell.text if cell.value is None else cell.value)
        head = heading(columns[metric].cells[row].text)
        if units is not None and not head.unit:
            head = msgspec.structs.replace(head, unit=unit_of(columns[units].cells[row].text))
        stat = statistic(columns[stats].cells[row].text) if stats is not None else ""
        cell = columns[value].cells[row]
        percent = cell.value is not None and cell.value > 1.5
        _add(keys, values, head, cell, place, unit=unit, stat=stat, percent=percent)
    arms = []
    for group, (keys, values, place) in made.items():
        label = ", ".join(filter(None, group)) or named or "table"
        arms.append(Arm(name=label, label=label, keys=keys, values=values, place=place))
    return _unique(arms)
