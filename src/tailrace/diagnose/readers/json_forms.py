"""JSON in a form of somebody's own: every list of objects is a table, every object of numbers a group, the rest facts.

The readers of tables judge what a list holds (requests, a series, arms), as if it had been written as CSV.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from tailrace.diagnose.observed import Histogram, Observed, Place
from tailrace.diagnose.observed.vocabulary import QUANTITIES, in_unit
from tailrace.diagnose.readers.heading import heading
from tailrace.diagnose.readers.json_numbers import observed_numbers
from tailrace.diagnose.readers.request_columns import looks_like_requests
from tailrace.diagnose.readers.requests import rows_of_requests
from tailrace.diagnose.readers.series_columns import axis_of, column_of_series, is_weak_axis
from tailrace.diagnose.readers.table_text import TableText
from tailrace.diagnose.readers.timeseries import series_of_table
from tailrace.diagnose.readers.units import unit_of
from tailrace.model.errors import InputError

__all__ = ["tables_in", "without_tables"]

MOST_DEPTH: Final = 6
FEWEST_ROWS: Final = 2
_FEWEST_VALUES: Final = 3
_BOUNDS: Final = ("explicitbounds", "bounds", "edges", "bucketbounds", "buckets", "le")
_COUNTS: Final = ("bucketcounts", "counts", "cumulative", "count", "values")
_EDGE: Final = ("le", "upper", "upper_bound", "bound", "edge", "max")
_COUNT: Final = ("count", "cumulative", "cumulative_count", "n", "value")
_BESIDE: Final = frozenset({*_EDGE, *_COUNT, "lower", "lower_bound", "min", "from", "bucket", "index"})
"""Numbers that a bucket may have; with any other, a row is no bucket."""


def tables_in(data: Any, source: str) -> Observed:
    """What the tables and histograms of a document hold. Nothing raises."""
    return Observed.joined(_in(data, "", source, 0))


def without_tables(value: Any, depth: int = 0) -> Any:
    """The same document without what `tables_in` reads."""
    if not isinstance(value, dict) or depth > MOST_DEPTH:
        return value
    return {key: without_tables(one, depth + 1) for key, one in value.items() if _objects(one) is None}


def _in(data: Any, name: str, source: str, depth: int) -> Iterator[Observed]:
    if depth > MOST_DEPTH:
        return
    rows = _objects(data)
    if rows is not None:
        histogram = _of_pairs(rows, name, source)
        if histogram is not None:
            yield Observed(histograms=[histogram])
        else:
            yield from _table(rows, name, source)
            for row in rows[:FEWEST_ROWS]:
                yield from _inner(row, name, source, depth)
    elif isinstance(data, dict):
        histogram = _of_lists(data, name, source) or _of_edges(data, name, source)
        if histogram is not None:
            yield Observed(histograms=[histogram])
            return
        columns = _columns(data)
        if columns is not None:
            yield from _table(columns, name, source)
        yield from _inner(data, name, source, depth)
    elif isinstance(data, list) and len(data) == 1:
        yield from _in(data[0], name, source, depth + 1)


def _inner(data: dict[str, Any], name: str, source: str, depth: int) -> Iterator[Observed]:
    own = str(data.get("name") or data.get("metric") or "")
    for key, value in data.items():
        if isinstance(value, (dict, list)):
            yield from _in(value, f"{name}.{own}.{key}".strip("."), source, depth + 1)


def _objects(data: Any) -> list[dict[str, Any]] | None:
    """The rows of a list of objects, or of a list of lists below their headings; `None` where it is neither."""
    if not isinstance(data, list) or len(data) < FEWEST_ROWS:
        return None
    if all(isinstance(one, dict) for one in data):
        return data
    head = data[0]
    if isinstance(head, list) and len(head) > 1 and all(isinstance(cell, str) for cell in head):
        rows = [row for row in data[1:] if isinstance(row, list) and len(row) == len(head)]
        return [dict(zip(head, row, strict=True)) for row in rows] if len(rows) >= FEWEST_ROWS else None
    return None


def _columns(data: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The rows of `{"t": [...], "running": [...]}`, or of `{"columns": [...], "rows": [[...]]}`."""
    heads, body = data.get("columns") or data.get("header"), data.get("rows") or data.get("data") or data.get("values")
    if isinstance(heads, list) and isinstance(body, list):
        return _objects([heads, *body])
    lists = {key: one for key, one in data.items() if isinstance(one, list) and len(one) >= _FEWEST_VALUES}
    lengths = {len(one) for one in lists.values()}
    plain = all(not isinstance(cell, (dict, list)) for one in lists.values() for cell in one)
    if len(lists) < 2 or len(lengths) != 1 or not plain or axis_of(next(iter(lists))) is None:
        return None
    return [dict(zip(lists, cells, strict=True)) for cells in zip(*lists.values(), strict=True)]


def _flat(row: dict[str, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, dict) and depth < MOST_DEPTH:
            yield from _flat(value, f"{before}{key}.", depth + 1)
        elif not isinstance(value, list):
            yield f"{before}{key}", value


def _table(rows: list[dict[str, Any]], name: str, source: str) -> Iterator[Observed]:
    table = TableText()
    for number, row in enumerate(rows, start=1):
        table.add(number, _flat(row))
    table.filled()
    names = list(table.columns)
    try:
        if looks_like_requests(names):
            yield rows_of_requests(table, source)
            return
        axis = next((one for one in names if axis_of(one) is not None and not is_weak_axis(one)), None)
        if axis is not None and any(column_of_series(one).known for one in names if one != axis):
            table.columns = {axis: table.columns.pop(axis), **table.columns}
            yield series_of_table(table, source)
            return
    except InputError:
        pass
    yield Observed(arms=observed_numbers(rows, source, named=name.rsplit(".", maxsplit=1)[-1]).arms)


# -- histograms


def _named(name: str, keys: list[str]) -> tuple[str, str]:
    """(quantity, unit of the edges) by the names of the groups around it."""
    said = unit_of(next((key.rsplit("_", 1)[-1] for key in keys if unit_of(key.rsplit("_", 1)[-1])), ""))
    for part in reversed(name.split(".")):
        found = heading(part.replace("_histogram", "").replace("_buckets", "").replace("histogram", ""))
        if found.quantity and QUANTITIES[found.quantity].unit == "ms":
            return found.quantity, said or found.unit or "s"
    return "", said or "s"


def _made(
    name: str, keys: list[str], edges: list[Any], counts: list[float], total: Any, source: str
) -> Histogram | None:
    quantity, unit = _named(name, keys)
    finite = [float(edge) for edge in edges if _is_number(edge) and math.isfinite(edge)]
    if not quantity or len(finite) < _FEWEST_VALUES or len(counts) < len(finite):
        return None
    if len(counts) == len(finite) and _is_number(total):
        cumulative = [*counts, float(total)]
    elif len(counts) == len(finite) + 1:
        rising = all(one <= two for one, two in pairwise(counts))
        # What grows from bucket to bucket and ends at the total is cumulative; what does not is counted in each, and so
        # is OTLP's `bucketCounts`, however they grow.
        whole = _is_number(total) and abs(sum(counts) - float(total)) < 0.5
        whole = whole or any(key.lower().replace("_", "") == "bucketcounts" for key in keys)
        cumulative = counts if rising and not whole else [sum(counts[: n + 1]) for n in range(len(counts))]
    else:
        return None
    each = [cumulative[0], *(two - one for one, two in pairwise(cumulative))]
    bounds = [in_unit(edge, unit, "ms") or 0.0 for edge in finite]
    if min(each) < 0 or sorted(bounds) != bounds:
        return None
    return Histogram(name=quantity, bounds=bounds, counts=each, unit="ms", raw=name, place=Place(source))


def _of_pairs(rows: list[dict[str, Any]], name: str, source: str) -> Histogram | None:
    """`[{"le": 0.5, "count": 210}, …, {"le": "+Inf", "count": 1000}]`."""
    keys = {str(key).lower(): key for key in rows[0]}
    edge = next((keys[word] for word in _EDGE if word in keys), None)
    count = next((keys[word] for word in _COUNT if word in keys), None)
    if edge is None or count is None:
        return None
    if any(_is_number(value) for row in rows for key, value in row.items() if str(key).lower() not in _BESIDE):
        return None  # `{"p50": 400, "max": 812, "n": 100}`: what each of several arms measured
    counts = [float(row[count]) for row in rows if _is_number(row.get(count))]
    if len(counts) < len(rows):
        return None
    return _made(name, [], [_edge(row.get(edge)) for row in rows], counts, None, source)


def _of_lists(data: dict[str, Any], name: str, source: str) -> Histogram | None:
    """`{"explicitBounds": [...], "bucketCounts": [...]}`, or a list of edges beside one of counts."""
    keys = {str(key).lower().replace("_", "").removesuffix("s").removesuffix("m"): key for key in data}
    wanted = [
        next(
            (
                data[key]
                for low, key in keys.items()
                for word in words
                if low in {word, word.removesuffix("s")} and isinstance(data[key], list)
            ),
            None,
        )
        for words in (_BOUNDS, _COUNTS)
    ]
    edges, counts = wanted
    if not isinstance(edges, list) or not isinstance(counts, list) or edges is counts:
        return None
    numbers = [value for one in counts if (value := _number(one)) is not None]
    if len(numbers) != len(counts):
        return None
    total = next((value for key in ("total", "count", "n") if (value := _number(data.get(key))) is not None), None)
    return _made(name, list(map(str, data)), [_edge(one) for one in edges], numbers, total, source)


def _of_edges(data: dict[str, Any], name: str, source: str) -> Histogram | None:
    """`{"0.5": 40, "1": 90, "+Inf": 120}`: counts under their edges."""
    edges = [_edge(key) for key in data]
    counts = [value for one in data.values() if (value := _number(one)) is not None]
    if len(counts) != len(edges) or not any(math.isinf(edge) for edge in edges) or any(map(math.isnan, edges)):
        return None
    return _made(name, [], edges, counts, None, source)


def _edge(value: Any) -> float:
    if isinstance(value, str):
        try:
            return float(value.strip().lower().lstrip("+<=≤ "))
        except ValueError:
            return math.nan
    return float(value) if _is_number(value) else math.nan


def _number(value: Any) -> float | None:
    """A number, also one that a string holds, as OTLP writes integers."""
    if isinstance(value, str) and value.strip().isdigit():
        return float(value)
    return float(value) if _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
