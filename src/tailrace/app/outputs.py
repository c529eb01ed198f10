"""What a command writes must not be what it reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tailrace.model.errors import InputError

__all__ = ["refuse_to_replace"]


def refuse_to_replace(out: str | Path, sources: Iterable[str | None], *, option: str) -> None:
    """InputError where `out`, given by `option`, is one of the sources, by whatever path: it would be lost.

    Sources that are no files (an address, `-`, nothing) are no concern; `results.json#2` is `results.json`.
    """
    path = Path(out)
    try:
        if not path.exists():
            return
        same = any(path.samefile(one) for one in map(_file_of, sources) if one is not None)
    except (OSError, ValueError):
        return  # whoever opens it says what is wrong with it
    if same:
        raise InputError("it would replace what is read here", place=str(path), remedy=f"Give {option} another name.")


def _file_of(source: str | None) -> Path | None:
    if not source:
        return None
    names = (source, source.rpartition("#")[0])
    return next((path for path in map(Path, filter(None, names)) if path.exists()), None)
