"""Tables with one request a row: JSON lines, a JSON array, CSV, in whatever columns a script wrote them.

`read_requests` takes a map of columns for headings that are none of the common ones. Columns are those of
`request_columns`, with `ttft_ms` and `e2e_ms` derived from the stamps where the table does not tell them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Clock, Observed, Place, Rows, Understood
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.headings import heading, stamp_ms
from tailrace.diagnose.readers.request_columns import DURATIONS, STAMPS, TEXTS, canonical, looks_like_requests
from tailrace.diagnose.readers.table_text import TableText, first_headings, read_table
from tailrace.model.errors import InputError

__all__ = ["REQUESTS", "has_columns", "read_requests", "rows_of_requests"]

Floats = NDArray[np.float64]
_HEAD_BYTES: Final = 1 << 16
_EPOCHS: Final = (("ns", 1e17), ("us", 1e14), ("ms", 1e11), ("s", 1e8))
_TO_MS: Final = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "min": 6e4}
_LONGEST_S: Final = 20.0
_MOSTLY: Final = 0.5
_LONGEST_MS: Final = 3.6e6
"""No request takes longer than an hour."""
_OK: Final = frozenset(
    {"ok", "success", "succeeded", "completed", "complete", "done", "true", "1", "finished", "stop", "length", "passed"}
)
_TIMEOUT: Final = ("timeout", "timed out", "timed_out", "deadline", "504", "408")
_CANCELLED: Final = ("cancel", "abort", "disconnect", "hang", "client closed", "499")


def read_requests(path: Path, name: str, columns: Mapping[str, str] | None = None) -> Observed:
    """The table in a file. `columns`: our name of a column (`t_send_ms`, or short: `send`) -> the file's heading.

    InputError where a column of the map is not there, or no row says anything of a request's time.
    """
    table = read_table(path)
    missing = [theirs for theirs in (columns or {}).values() if theirs not in table.columns]
    if missing and len(table):
        raise InputError(
            f"there is no column {missing[0]!r}; there are {', '.join(list(table.columns)[:12])}",
            place=name,
            remedy="Name a column of the file: --column send=HEADING.",
        )
    return rows_of_requests(table, name, columns)


def has_columns(path: Path, columns: Mapping[str, str]) -> bool:
    """Whether a file is a table with all the headings of a map."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return False
    return set(columns.values()) <= set(first_headings(head))


def rows_of_requests(table: TableText, name: str, columns: Mapping[str, str] | None = None) -> Observed:
    """The same of a table that was read already."""
    names = canonical(table.columns, columns)
    doubts: list[str] = []
    out, clock = _columns(table, names, doubts)
    _durations_called_stamps(out, doubts)
    _derive(out)
    _statuses(out)
    if "wall" in out:
        wall = stamp_ms(list(out["wall"]))
        if wall is not None:
            out["wall_s"] = np.array(wall[0], dtype=np.float64) / 1e3
    if not len(table) or not any(column in out for column in (*STAMPS, "ttft_ms", "e2e_ms")):
        raise InputError(
            "no row of it says when a request was sent, or how long it took",
            place=name,
            remedy="Name the columns: --column send=HEADING --column first=HEADING --column last=HEADING.",
        )
    understood = [
        Understood(
            source=name,
            format="requests",
            understood=len(table),
            total=table.total,
            what="rows",
            examples=table.not_read,
        ),
        *table.cut(name, "requests"),
    ]
    if doubts:
        whole = len(table.columns)
        understood.append(
            Understood(
                source=name,
                format="requests",
                understood=max(whole - len(doubts), 0),
                total=whole,
                what="columns",
                examples=doubts,
            )
        )
    rows = Rows(
        kind="requests", columns=out, clock=clock, lines=np.array(table.lines, dtype=np.int64), place=Place(name)
    )
    return Observed(rows=[rows], understood=understood)


def _columns(table: TableText, names: Mapping[str, str], doubts: list[str]) -> tuple[dict[str, NDArray[Any]], Clock]:
    """The columns under our names, and the clock of the stamps."""
    out: dict[str, NDArray[Any]] = {}
    stamps: dict[str, tuple[Floats, str]] = {}
    bare: list[tuple[str, str]] = []
    clock = Clock.RELATIVE
    for theirs, ours in names.items():
        unit = heading(theirs).unit
        if ours in STAMPS:
            read = _stamps(table, theirs, unit)
            if read is None:
                doubts.append(f"{theirs}: no times")
                continue
            stamps[ours] = read[0], read[1]
            clock = read[2] if read[2] is not Clock.RELATIVE else clock
        elif ours in TEXTS:
            out[ours] = _text(table.texts(theirs))
        else:
            timed = ours in DURATIONS
            numbers = table.numbers(theirs, unit, "ms" if timed or unit in _TO_MS else "")
            if numbers is None and timed:
                doubts.append(f"{theirs}: no durations")
            elif numbers is None or (not timed and bool(np.isnan(numbers).all())):
                out[ours] = _text(table.texts(theirs))
            else:
                out[ours] = np.array(numbers, dtype=np.float64)
                bare += [(ours, theirs)] if timed and not unit else []
    out = {**_in_ms(stamps, doubts), **out}
    for ours, theirs in bare:
        _unit_of_duration(out, ours, theirs, doubts)
    return out, clock


def _stamps(table: TableText, name: str, unit: str) -> tuple[Floats, str, Clock] | None:
    """(values, their unit or empty, their clock)."""
    values = table.numbers(name)
    if values is None:
        told = stamp_ms(table.columns[name])
        if told is None:
            return None
        return np.array(told[0], dtype=np.float64), "ms", Clock.UTC if told[1] else Clock.LOCAL
    array = np.array(values, dtype=np.float64)
    known = array[np.isfinite(array)]
    if not known.size:
        return None
    # A stamp of this century betrays its unit whatever the heading says.
    middle = float(np.median(known))
    for epoch, least in _EPOCHS:
        if least <= middle < least * 1e3 and (not unit or unit == epoch):
            return array, epoch, Clock.UTC
    return array, unit, Clock.RELATIVE


def _in_ms(stamps: dict[str, tuple[Floats, str]], doubts: list[str]) -> dict[str, NDArray[Any]]:
    """All stamps in ms. Where no heading names a unit, the requests' own length tells: seconds if the median one is
    below 20 of them and fractions are written, else milliseconds; and it is said.
    """
    told = {unit for _, unit in stamps.values() if unit}
    guess = next(iter(told)) if len(told) == 1 else ""
    if not guess and stamps:
        ordered = [stamps[name][0] for name in STAMPS if name in stamps]
        if len(ordered) > 1:
            with np.errstate(invalid="ignore"):
                length = np.nanmedian(np.nanmax(ordered, axis=0) - np.nanmin(ordered, axis=0))
        else:
            length = np.nan
        fractions = any(bool((np.nan_to_num(values, posinf=0, neginf=0) % 1 != 0).any()) for values in ordered)
        guess = "s" if fractions and not length >= _LONGEST_S else "ms"
    out: dict[str, NDArray[Any]] = {}
    for name, (values, unit) in stamps.items():
        if not unit:
            doubts.append(f"{name.removesuffix('_ms')}: no unit is written, taken as {guess}")
        out[name] = values * _TO_MS.get(unit or guess, 1.0)
    return out


def _unit_of_duration(out: dict[str, NDArray[Any]], ours: str, theirs: str, doubts: list[str]) -> None:
    """A duration without a unit: as the stamps have it, else seconds where the median is below 20 with fractions."""
    values = out[ours]
    known = values[np.isfinite(values)]
    if not known.size:
        return
    first, send, last = out.get("t_first_ms"), out.get("t_send_ms"), out.get("t_last_ms")
    end = first if ours == "ttft_ms" else last if ours == "e2e_ms" else None
    factor = 1.0
    if end is not None and send is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = float(np.nanmedian((end - send) / values))
        factor = 1e3 if 300 < ratio < 3000 else 1.0
    elif float(np.median(np.abs(known))) < _LONGEST_S and bool((known % 1 != 0).any()):
        factor = 1e3
    doubts.append(f"{theirs}: no unit is written, taken as {'s' if factor > 1 else 'ms'}")
    out[ours] = values * factor


def _durations_called_stamps(out: dict[str, NDArray[Any]], doubts: list[str]) -> None:
    """`first_token_ms` beside a send of this century, or below the send in most rows, counts from the send."""
    send = out.get("t_send_ms")
    if send is None:
        return
    for stamp, duration in (("t_first_ms", "ttft_ms"), ("t_last_ms", "e2e_ms")):
        values = out.get(stamp)
        if values is None or duration in out:
            continue
        known = np.isfinite(values) & np.isfinite(send)
        if not known.any() or bool((values[known] < 0).any()):
            continue
        if float((values[known] < send[known]).mean()) > _MOSTLY and float(np.median(values[known])) < _LONGEST_MS:
            out[duration] = out.pop(stamp)
            doubts.append(f"{stamp.removesuffix('_ms')}: before the send in most rows, taken as counted from it")


def _derive(out: dict[str, NDArray[Any]]) -> None:
    """Stamps from durations and durations from stamps, where one of them is there and the other is not."""
    if "output_tokens" not in out and "usage_completion_tokens" in out:
        out["output_tokens"] = out["usage_completion_tokens"]
    send = out.get("t_send_ms")
    for stamp, duration in (("t_first_ms", "ttft_ms"), ("t_last_ms", "e2e_ms")):
        if send is None:
            continue
        if stamp in out and duration not in out:
            out[duration] = out[stamp] - send
        elif duration in out and stamp not in out:
            out[stamp] = send + out[duration]


def _statuses(out: dict[str, NDArray[Any]]) -> None:
    """`ok`, `error`, `timeout` or `cancelled` for every row; what is written in other words stays in `status_text`."""
    n = len(next(iter(out.values()))) if out else 0
    words = [str(value).lower() for value in out.get("status", _text([""] * n))]
    errors = [str(value) for value in out.get("error", _text([""] * n))]
    codes = out.get("http_status")
    if codes is None and words and all(word.isdigit() and len(word) == 3 for word in words if word) and any(words):
        codes = out["http_status"] = np.array([float(word) if word else np.nan for word in words])
        words = [""] * n
    out["status_text"] = _text(words)
    out["status"] = _text(
        [
            _status(word, error, None if codes is None or codes.dtype == object else float(codes[at]))
            for at, (word, error) in enumerate(zip(words, errors, strict=True))
        ]
    )


def _status(word: str, error: str, code: float | None) -> str:
    known = word in _OK or word in {"", "none", "null"}
    text = error.lower() if known else word
    said = known and (not text or text in {"none", "null", "nan", "false", "0", "-"})
    if said and (code is None or not code >= 400):
        return "ok"
    text = text if code is None or not code >= 400 else f"{text} {code:.0f}"
    if any(mark in text for mark in _TIMEOUT):
        return "timeout"
    return "cancelled" if any(mark in text for mark in _CANCELLED) else "error"


def _text(values: list[str]) -> NDArray[Any]:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _matches(head: str, name: str) -> bool:
    _ = name
    return looks_like_requests(first_headings(head))


REQUESTS: Final = Format(name="requests", matches=_matches, read=read_requests)
