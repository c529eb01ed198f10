"""Runs from wherever they lie, as one history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tailrace.analyze.history import point_of
from tailrace.app.diagnose import read_any
from tailrace.model.errors import InputError, RunFileError
from tailrace.store.history_file import HistoryPoint, append_history, read_history

__all__ = ["collect"]

_MARK: Final = b'{"schema":'


def collect(
    sources: Sequence[str], *, file: Path | None, label: str, on_skipped: Callable[[str], None]
) -> tuple[list[HistoryPoint], int]:
    """(every run of `sources` and of the history `file`, how many of them are new to the file).

    A source is a run file, a history file, or a folder of run files. A run that was cut short inside a folder is left
    out and named through `on_skipped`; one that was named itself is an error.
    """
    found: list[HistoryPoint] = []
    for source in sources:
        path = Path(source)
        if path.is_dir():
            runs = sorted(path.rglob("*.run"))
            if not runs:
                raise InputError(
                    "no run file (*.run) in this folder", place=source, remedy="`tailrace bench URL --out NAME.run`."
                )
            for run in runs:
                try:
                    found += _points(run, label)
                except RunFileError as error:
                    on_skipped(str(error))
        else:
            found += _points(path, label)
    added = append_history(file, found) if file is not None and found else 0
    if file is not None and file.exists():
        found = read_history(file) + found
    return found, added


def _points(path: Path, label: str) -> list[HistoryPoint]:
    if _is_history(path):
        return read_history(path)
    runs = [one.run for one in read_any(str(path)) if one.run is not None]
    if not runs:
        raise InputError("it is no run", place=str(path), remedy="Give run files, their folder, or a history file.")
    return [point_of(run, label=label) for run in runs]


def _is_history(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(256)
    except OSError:
        return False  # whoever reads it as a run says what is wrong
    return head.startswith(_MARK) and b'"work":' in head
