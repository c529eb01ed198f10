"""Reading run files: what is whole is read, and what is not is named with its place and its remedy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from tailrace.model.client_sample import ClientSample
from tailrace.model.engine_state import EngineState
from tailrace.model.errors import RunFileError
from tailrace.model.record import SCHEMA, RequestRecord
from tailrace.store.run_block import decode_records
from tailrace.store.run_columns import RunColumns
from tailrace.store.run_file import EMPTY, HEADER_CUT, RUN_SCHEMA, Contents, End, Run, SeenState
from tailrace.store.run_frame import (
    MAGIC,
    PREAMBLE_BYTES,
    Flaw,
    FlawKind,
    Frame,
    FrameKind,
    read_preamble,
    scan,
)

__all__ = ["read"]

_RERUN: Final = "`tailrace bench URL --out RUN` writes a run file."
_PARTIAL: Final = "Pass --partial to use the {n:,} requests of its whole blocks, or measure again."
_NOTHING: Final = "Nothing can be read from it: measure again."
_QUOTE: Final = 60
_PACKED: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"BZh": "bzip2"}
_SHOWN: Final = 4
"""Flaws that are told one by one."""

_decode_any: Final = msgspec.msgpack.Decoder().decode
_decode_contents: Final = msgspec.msgpack.Decoder(Contents).decode
_decode_end: Final = msgspec.msgpack.Decoder(End).decode
_decode_states: Final = msgspec.msgpack.Decoder(list[SeenState]).decode
_decode_samples: Final = msgspec.msgpack.Decoder(list[ClientSample]).decode
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError)


def read(path: Path, *, allow_partial: bool, columns: bool = False) -> Run:
    """See `run_file.read_run`."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise RunFileError("there is no such file", place=str(path), remedy=_RERUN) from None
    except IsADirectoryError:
        raise RunFileError(
            "this is a directory, not a run file",
            place=str(path),
            remedy="Name the run file itself; `tailrace records` reads a gateway's data directory.",
        ) from None
    except OSError as error:
        raise RunFileError(
            f"cannot be read: {error.strerror or error}", place=str(path), remedy="Check its permissions."
        ) from None
    _refuse_others(data, str(path))
    return _Reading(data, str(path), columns=columns).run(allow_partial=allow_partial)


def _refuse_others(data: bytes, place: str) -> None:
    """Say what a file is that is no run file of this form."""
    if data.startswith(MAGIC):
        if len(data) < PREAMBLE_BYTES:
            raise RunFileError(HEADER_CUT, place=place, remedy=_NOTHING)
        version, tool = read_preamble(data)
        if version != RUN_SCHEMA:
            raise RunFileError(
                f"it was written in version {version} of the run file, this Tailrace reads {RUN_SCHEMA}",
                place=place,
                remedy=f"Read it with the Tailrace that wrote it (version {tool or 'unknown'}) or a newer one.",
            )
        return
    if not data:
        raise RunFileError(EMPTY, place=place, remedy=_RERUN)
    if MAGIC.startswith(data):
        raise RunFileError(HEADER_CUT, place=place, remedy=_NOTHING)
    if data.startswith(b'{"tailrace_run"'):
        found = re.search(rb'"version":\s*"([^"]{1,40})"', data[:4096])
        tool = found[1].decode("ascii", "replace") if found else "unknown version"
        raise RunFileError(
            f"this run file is JSON lines, as Tailrace wrote them before its run files became binary ({tool})",
            place=place,
            remedy="Read it with the Tailrace that wrote it, or measure again.",
        )
    if data.startswith((b"\x89tailrun\n", b"\xc2\x89tailrun", b"\xef\xbf\xbdtailrun")):
        raise RunFileError(
            "this run file was transferred as text, which has changed its bytes",
            place=place,
            remedy="Copy it again as a binary file.",
        )
    for magic, name in _PACKED.items():
        if data.startswith(magic):
            raise RunFileError(f"this file is packed with {name}", place=place, remedy="Unpack it first.")
    raise RunFileError(f"this is not a run file; it begins with {_quote(data)}", place=place, remedy=_RERUN)


class _Reading:
    def __init__(self, data: bytes, name: str, *, columns: bool) -> None:
        self.as_columns = columns
        self.columns: RunColumns | None = None
        self.data = data
        self.name = name
        self.records: list[RequestRecord] = []
        self.states: list[EngineState] = []
        self.samples: list[ClientSample] = []
        self.end: End | None = None
        self.problems: list[tuple[int, str]] = []
        """(place, what is wrong), in the file's order."""
        self.names: dict[str, str] = {}

    def run(self, *, allow_partial: bool) -> Run:
        frames, flaws = scan(self.data)
        contents = self.header(frames, flaws)
        if self.as_columns:
            # No block that holds anything has less than a byte a row: whatever a damaged head says is bounded.
            self.columns = RunColumns(
                min(sum(one.rows for one in frames if one.kind == FrameKind.RECORDS), len(self.data))
            )
        for one in frames[1:]:
            try:
                self.take(one, contents)
            except _UNREADABLE as error:
                self.problems.append((one.at, f"block {one.number} does not fit: {error}"))
        self.problems += [(flaw.at, self.sentence(flaw)) for flaw in flaws]
        self.count()
        self.problems.sort(key=lambda one: one[0])
        if self.problems and not allow_partial:
            at, problem = self.problems[0]
            more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
            raise RunFileError(problem + more, place=f"{self.name}, byte {at}", remedy=_PARTIAL.format(n=self.rows))
        return Run(
            path=self.name,
            header=contents.header,
            records=self.records,
            trailer=self.end.trailer if self.end is not None and not self.problems else None,
            problem=self.told(),
            states=self.states,
            health=self.samples,
            columns=None if self.columns is None else self.columns.table(),
        )

    @property
    def rows(self) -> int:
        """Records that were read."""
        return len(self.records) if self.columns is None else self.columns.rows

    def told(self) -> str:
        shown = "; ".join(f"byte {at}: {problem}" for at, problem in self.problems[:_SHOWN])
        more = len(self.problems) - _SHOWN
        return f"{shown}; and {more} more" if more > 0 else shown

    def header(self, frames: list[Frame], flaws: list[Flaw]) -> Contents:
        place = f"{self.name}, byte {PREAMBLE_BYTES}"
        if not frames:
            cut = all(flaw.kind in (FlawKind.CUT, FlawKind.NO_END) for flaw in flaws)
            what = HEADER_CUT if cut else "the header is damaged: its checksum does not match"
            raise RunFileError(what, place=place, remedy=_NOTHING)
        try:
            head: Any = _decode_any(frames[0].payload)
            said = head["header"]
            for key, known in (("tailrace_run", RUN_SCHEMA), ("record_schema", SCHEMA)):
                schema = said.get(key, known)
                if schema != known:
                    raise RunFileError(
                        f"{key} is {schema!r}, this Tailrace reads {known}",
                        place=place,
                        remedy=f"Read it with the Tailrace that wrote it (version {said.get('version') or 'unknown'}).",
                    )
            return _decode_contents(frames[0].payload)
        except (*_UNREADABLE, TypeError, KeyError, AttributeError) as error:
            raise RunFileError(f"the header does not fit: {error}", place=place, remedy=_RERUN) from None

    def take(self, one: Frame, contents: Contents) -> None:
        if one.kind == FrameKind.RECORDS:
            if self.columns is not None:
                self.columns.take(one.payload, one.rows, contents.numbers, contents.texts)
            else:
                self.records += decode_records(one.payload, one.rows, contents.numbers, contents.texts)
        elif one.kind == FrameKind.STATES:
            for seen in _decode_states(one.payload):
                self.names = self.names if seen.names is None else seen.names
                self.states.append(msgspec.structs.replace(seen.state, names=self.names))
        elif one.kind == FrameKind.SAMPLES:
            self.samples += _decode_samples(one.payload)
        elif one.kind == FrameKind.TRAILER:
            self.end = _decode_end(one.payload)

    def count(self) -> None:
        """The trailer's count must be what is there, also where every checksum matches."""
        if self.end is None or self.problems:
            return
        said = self.end.trailer.n
        if said != self.rows:
            what = f"the trailer says {said} requests, but the file holds {self.rows}"
            self.problems.append((len(self.data), what))

    def sentence(self, flaw: Flaw) -> str:
        """What is wrong, with what is lost by it where the index tells."""
        bytes_ = f"{flaw.end - flaw.at:,} bytes"
        if flaw.kind is FlawKind.CUT:
            what = (
                "the end mark is cut" if not flaw.missing else f"block {flaw.number} is cut, {bytes_} of it are there"
            )
            return f"{what}: the run was interrupted, or the file was"
        if flaw.kind is FlawKind.NO_END:
            return "the file ends without its trailer: the run was interrupted, or the file was cut"
        if flaw.kind is FlawKind.JOINED:
            where = "after the end of the first" if self.end is not None else "here"
            return f"a second run begins {where}: two files were joined"
        if flaw.kind is FlawKind.TRAILING:
            return f"something follows the end of the run ({bytes_}): {_quote(self.data[flaw.at :])}"
        which = f"block {flaw.number}"
        if flaw.missing > 1:
            which = f"blocks {flaw.number} to {flaw.number + flaw.missing - 1}"
        if flaw.kind is FlawKind.MISSING:
            what = f"{which} {'is' if flaw.missing == 1 else 'are'} missing before this place"
        elif not flaw.missing:
            return f"the end mark is damaged ({bytes_})"
        else:
            what = f"{which} {'is' if flaw.missing == 1 else 'are'} damaged, the checksum does not match ({bytes_})"
        return what + self.lost(flaw)

    def lost(self, flaw: Flaw) -> str:
        if self.end is None:
            return ""
        gone = self.end.index[flaw.number : flaw.number + flaw.missing]
        requests = sum(rows for kind, _, rows in gone if kind == FrameKind.RECORDS)
        return f": {requests:,} requests are lost with it" if requests else ""


def _quote(data: bytes) -> str:
    text = data[:_QUOTE].split(b"\n", maxsplit=1)[0].decode("utf-8", "replace").rstrip("\r\n")
    return repr(text + ("…" if len(data) > _QUOTE else ""))
