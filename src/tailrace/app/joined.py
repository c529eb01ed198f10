"""A run joined with the records of the gateway that it went through: a data directory, an admin URL, an export."""

from __future__ import annotations

from tailrace.analyze.joined import Joined, joined
from tailrace.app.diagnose import read_any
from tailrace.model.errors import InputError

_REMEDY = (
    "Give the gateway's data directory, its admin URL (http://127.0.0.1:9480), or what `tailrace records export` wrote."
)


def join_run(run: str, records: str, *, allow_partial: bool = False, token: str = "") -> Joined:
    """Join the run file `run` with the records at `records`. InputError for what is no run, and for no records."""
    mine = next((one for one in read_any(run, allow_partial=allow_partial, token=token) if one.run is not None), None)
    if mine is None or mine.table is None:
        raise InputError("this is no run to join records with", place=run, remedy="Give a run file.")
    theirs = next((one for one in read_any(records, token=token) if one.table is not None), None)
    if theirs is None or theirs.table is None:
        raise InputError("there are no records", place=records, remedy=_REMEDY)
    if theirs.run is not None:
        raise InputError("these are the records of a load test, not of a gateway", place=records, remedy=_REMEDY)
    return joined(mine.table, theirs.table, dropped=theirs.dropped)
