"""The public form of a record: JSON with durations in milliseconds, one record a line.

Used by the admin port's `/records`, by `tailrace records export`, and read back by `tailrace diagnose`. Against the
record itself:

* every duration `x_ns` is `x_ms`, a number with its full digits: reading it back gives the same nanosecond (up to
  2**50 ns, thirteen days)
* stages stand in `stages_ms`, parts of stages in `parts_ms`, by their names: `{"prefill": 41.2, "decode": 900.0}`;
  parts that services report by name (`parts_ns`) are among them
* the start is `start_unix_ns` (exact) and `start` (for people, UTC)
* the timeline has `at_ms`, `kind` by name, `tokens`
* what is absent is left out, and so is empty text
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from tailrace.model.errors import InputError
from tailrace.model.record import RequestRecord
from tailrace.model.stage import QUEUE_ENGINE, QUEUE_GATEWAY, STAGES
from tailrace.model.timeline import EventKind, Timeline
from tailrace.store.table import default_of

__all__ = ["encode_lines", "encode_public", "from_public", "from_public_json", "to_public"]

_FIELDS: Final = tuple(name for name in RequestRecord.__struct_fields__ if name != "timeline")
_STAGE_OF: Final = {f"{stage}_ns": str(stage) for stage in STAGES}
_PART_OF: Final = {f"{part.replace('.', '_')}_ns": part for part in (QUEUE_GATEWAY, QUEUE_ENGINE)}
_DURATIONS: Final = {
    name: f"{name[:-3]}_ms"
    for name in _FIELDS
    if name.endswith("_ns")
    and name not in {"start_unix_ns", "parts_ns"}
    and name not in _STAGE_OF
    and name not in _PART_OF
}
_PLAIN: Final = tuple(name for name in _FIELDS if name not in {*_DURATIONS, *_STAGE_OF, *_PART_OF, "parts_ns"})
_EMPTY_BY_DEFAULT: Final = frozenset(name for name in _PLAIN if default_of(name) in ("", {}, []))
_KIND_NAMES: Final = [kind.name.lower() for kind in EventKind]
_KINDS: Final = {name: int(kind) for kind, name in zip(EventKind, _KIND_NAMES, strict=True)}

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


def to_public(record: RequestRecord, *, timeline: bool = True) -> dict[str, Any]:
    """The public form as a dict; `timeline=False` leaves the timeline out."""
    out: dict[str, Any] = {}
    for name in _PLAIN:
        value = getattr(record, name)
        # False and 0 are said; None, "", {} and [] are absences, and so are left out where they are the default.
        if value is None or (name in _EMPTY_BY_DEFAULT and not value):
            continue
        out[name] = value
    started = dt.datetime.fromtimestamp(record.start_unix_ns // 1_000_000_000, tz=dt.UTC)
    out["start"] = f"{started:%Y-%m-%dT%H:%M:%S}.{record.start_unix_ns % 1_000_000_000 // 1_000_000:03d}Z"
    for name, public in _DURATIONS.items():
        value = getattr(record, name)
        if value is not None:
            out[public] = value / 1e6
    out["stages_ms"] = _durations(record, _STAGE_OF)
    parts = _durations(record, _PART_OF)
    parts.update({name: value / 1e6 for name, value in record.parts_ns.items()})
    if parts:
        out["parts_ms"] = parts
    if timeline and record.timeline is not None:
        line = record.timeline
        out["timeline"] = {
            "at_ms": [at / 1e6 for at in line.at_ns],
            "kind": [_KIND_NAMES[kind] for kind in line.kind],
            "tokens": line.tokens,
            "thinned": line.thinned,
        }
    return out


def _durations(record: RequestRecord, names: dict[str, str]) -> dict[str, float]:
    values = ((public, getattr(record, name)) for name, public in names.items())
    return {public: value / 1e6 for public, value in values if value is not None}


def encode_public(record: RequestRecord, *, timeline: bool = True) -> bytes:
    """One JSON object, without a newline."""
    return _encode(to_public(record, timeline=timeline))


def encode_lines(records: Iterable[RequestRecord], *, timeline: bool = True) -> Iterator[bytes]:
    """One line a record, newline included."""
    for record in records:
        yield encode_public(record, timeline=timeline) + b"\n"


def from_public_json(line: bytes | str, *, place: str = "") -> RequestRecord:
    """Read one line of `encode_lines`. InputError, naming `place` (file and line), when it is no such record."""
    try:
        decoded = _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"this line is not JSON: {error}", place=place) from None
    return from_public(decoded, place=place)


def from_public(public: Any, *, place: str = "") -> RequestRecord:
    """The inverse of `to_public`; unknown keys are ignored. InputError when it is no record."""
    if not isinstance(public, dict):
        raise InputError("a record is a JSON object", place=place)
    fields: dict[str, Any] = {name: public[name] for name in _PLAIN if name in public}
    try:
        for name, shown in _DURATIONS.items():
            _take(fields, name, public.get(shown))
        for group, names in (("stages_ms", _STAGE_OF), ("parts_ms", _PART_OF)):
            values = public.get(group) or {}
            for name, shown in names.items():
                _take(fields, name, values.get(shown))
        parts = public.get("parts_ms") or {}
        named = {name: round(value * 1e6) for name, value in parts.items() if name not in _PART_OF.values()}
        if named:
            fields["parts_ns"] = named
        line = public.get("timeline")
        if line is not None:
            fields["timeline"] = Timeline(
                at_ns=[round(at * 1e6) for at in line["at_ms"]],
                kind=[_KINDS[kind] for kind in line["kind"]],
                tokens=list(line["tokens"]),
                thinned=line.get("thinned", 0),
            )
        return msgspec.convert(fields, RequestRecord)
    except (msgspec.ValidationError, TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
        what = f"{error}" if isinstance(error, msgspec.ValidationError) else f"{type(error).__name__}: {error}"
        raise InputError(
            f"this is not a record in Tailrace's public form ({what})",
            place=place,
            remedy="`tailrace records export --format jsonl` and a gateway's /records write it.",
        ) from None


def _take(fields: dict[str, Any], name: str, value_ms: float | None) -> None:
    if value_ms is not None:
        fields[name] = round(value_ms * 1e6)
