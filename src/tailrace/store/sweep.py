"""Sweeps at rest: a directory with one run file a point, and `sweep.json`, which says what they are together.

`sweep.json` is written again after each point (to a temporary file, then renamed), so an interrupted sweep keeps the
points that it has. Each point carries its summary, so that a table or a curve needs no run file to be opened.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgspec

from tailrace.model.errors import RunFileError, StoreError
from tailrace.model.measurement import BenchSummary

__all__ = ["SWEEP_FILE", "Sweep", "SweepRun", "is_sweep", "read_sweep", "write_sweep"]

SWEEP_FILE: Final = "sweep.json"
SWEEP_SCHEMA: Final = 1


class SweepRun(msgspec.Struct, frozen=True, kw_only=True):
    """One point: a whole run with its own warm-up and its own end."""

    value: float
    """Requests a second, or requests at once: see `Sweep.axis`."""
    run: str
    """Name of its run file in the directory."""
    summary: BenchSummary
    duration_s: float = 0.0
    """From the first request's time to the last answer's end."""
    saturated: str = ""
    """Why the point is beyond what the server can do; empty where it is not."""
    standing: str = ""
    """Of a search: what its requests prove with those of earlier trials of this load: `met`, `missed`, `undecided`."""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep or a search measured. `runs` are in the order in which they were measured."""

    schema: int = msgspec.field(default=SWEEP_SCHEMA, name="tailrace_sweep")
    version: str = ""
    """Of the tool that wrote it."""
    kind: str = "sweep"
    """`sweep`: the asked points in order. `search`: points that a search for a boundary chose."""
    axis: str = "rate"
    """`rate` (requests a second of an open loop) or `concurrency` (requests at once of a closed loop)."""
    target: str = ""
    model: str = ""
    started_unix_ns: int = 0
    asked: list[float] = []
    """The points that were asked for; fewer may have been measured."""
    stopped: str = ""
    """Why it ended before the last point; empty where it did not."""
    runs: list[SweepRun] = []
    found: dict[str, Any] = {}
    """Of a search: its answer (`value`, `low`, `high`, `confidence`, ...), as `tailrace bench --json` prints it."""


_decode = msgspec.json.Decoder(Sweep)


def is_sweep(path: str | Path) -> bool:
    """Whether `path` is a directory with a sweep in it."""
    return (Path(path) / SWEEP_FILE).is_file()


def write_sweep(directory: str | Path, sweep: Sweep) -> None:
    """Write `sweep.json` anew. StoreError when the disk refuses; the old file is then untouched."""
    path = Path(directory) / SWEEP_FILE
    fresh = path.with_suffix(".json.new")
    try:
        with fresh.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(sweep), indent=1))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot write the sweep: {error.strerror or error}") from None


def read_sweep(directory: str | Path) -> Sweep:
    """Read the sweep in `directory` (or named by its `sweep.json`).

    RunFileError (names the place and the remedy) when there is none, or it is of another schema.
    """
    path = Path(directory)
    path = path if path.name == SWEEP_FILE else path / SWEEP_FILE
    remedy = "`tailrace bench URL --sweep rate=1..32 --out DIRECTORY` writes a sweep."
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise RunFileError("there is no sweep here", place=str(path), remedy=remedy) from None
    except OSError as error:
        raise RunFileError(
            f"cannot be read: {error.strerror or error}", place=str(path), remedy="Check its permissions."
        ) from None
    try:
        head = msgspec.json.decode(content)
        schema = head.get("tailrace_sweep") if isinstance(head, dict) else None
        if schema != SWEEP_SCHEMA:
            raise RunFileError(
                f"tailrace_sweep is {schema!r}, this Tailrace reads {SWEEP_SCHEMA}", place=str(path), remedy=remedy
            )
        return _decode.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RunFileError(f"this is no sweep: {error}", place=str(path), remedy=remedy) from None
