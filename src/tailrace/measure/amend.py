"""Amending: what became known of a request later, read into its record as if it had been known in time.

The wait between the send and the first token (without tokens: the end of the answer) is split again by the rules of
`measure.stage_account`: reported parts in the order of a life, each cut to what is left, the cut said in the source,
the rest `unattributed`; the stages still add up to the end-to-end time exactly. What the record knows better stays:

    measured  >  reported in the answer  >  reported late  >  inferred

Of several amendments that say the same thing equally well, the one that came first counts (exporters repeat
themselves, and a repetition must change nothing). Their order in the argument never matters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from tailrace.measure.lineage import with_note
from tailrace.model.amendment import Amendment
from tailrace.model.record import RequestRecord
from tailrace.model.stage import QUEUE_ENGINE, QUEUE_GATEWAY, STAGES, SourceKind, Stage, source
from tailrace.model.thresholds import MS

AMENDABLE: Final = (
    "queue_ns",
    "queue_engine_ns",
    "preprocess_ns",
    "encode_ns",
    "prefill_ns",
    "decode_ns",
    "unattributed_ns",
    "parts_ns",
    "stage_sources",
    "cached_tokens",
    "preemptions",
    "finish_reason",
    "cancel_slot_ns",
    "fact_sources",
)
"""The fields of a record that `amend` may set."""
NEEDED: Final = tuple(
    dict.fromkeys(
        (
            *AMENDABLE,
            *(f"{stage}_ns" for stage in STAGES),
            "queue_gateway_ns",
            "request_id",
            "vantage",
            "trace_id",
            "span_id",
            "parent_id",
            "start_unix_ns",
            "outcome",
            "reason",
            "e2e_ns",
            "ttft_ns",
            "ttft_upstream_ns",
        )
    )
)
"""The fields that `amend` and `lineage.share_out` read: a record that has only these is amended like the whole."""
SERVICES_BEHIND: Final = "postprocess.upstream"
"""The part of `postprocess` that a service between us and the engine accounts for."""

_WAIT: Final = ("queue", "preprocess", "encode", "prefill")
_FIELD: Final = {str(stage): f"{stage}_ns" for stage in STAGES}
_STRENGTH: Final = {kind.value[0]: place for place, kind in enumerate(reversed(SourceKind), 1)}
"""By a source's first letter; what has no source is worth as much as what is inferred."""
_INFERRED: Final = _STRENGTH[SourceKind.INFERRED.value[0]]
_MEASURED: Final = SourceKind.MEASURED.value
_REPORTED: Final = source(SourceKind.REPORTED)
_REMAINDER: Final = source(SourceKind.INFERRED, "remainder")
_FACTS: Final = ("cached_tokens", "preemptions", "finish_reason", "cancel_slot_ns")


class _Part(msgspec.Struct, frozen=True):
    """What is known of one stage or part, by whom, and how well."""

    value: int
    source: str
    strength: int


def _part(value: int, text: str) -> _Part:
    return _Part(value, text, _STRENGTH.get(text[:1], _INFERRED))


def amend(record: RequestRecord, amendments: Iterable[Amendment]) -> RequestRecord:
    """The record with what these amendments add; the same object where they add nothing.

    They are taken to be about this record (see `lineage.share_out`).
    """
    late = list(amendments)
    if not late:
        return record
    if len(late) > 1:
        late.sort(key=_first_come)
    return _Amending(record, late).done()


def _first_come(one: Amendment) -> tuple[Any, ...]:
    # All of it: two that differ anywhere have one order, whatever order they are given in.
    return (one.received_unix_ns, one.origin, one.span_id, msgspec.msgpack.encode(one, order="deterministic"))


class _Amending:
    """One record on its way; asks for no more fields than `NEEDED`."""

    def __init__(self, record: RequestRecord, late: list[Amendment]) -> None:
        self._record = record
        self._late = late
        self._of_parts = [one for one in late if one.parts_ns or one.postprocess_ns is not None]
        self._sources = record.stage_sources.copy()
        self._changes: dict[str, Any] = {}

    def done(self) -> RequestRecord:
        record, changes = self._record, self._changes
        self._split_wait()
        if record.parts_ns or self._of_parts:
            self._add_parts()
        self._add_facts()
        if self._sources != record.stage_sources:
            changes["stage_sources"] = self._sources
        return msgspec.structs.replace(record, **changes) if changes else record

    def _stage(self, stage: str) -> int | None:
        """A stage's value as it is now."""
        field = _FIELD[stage]
        value: int | None = self._changes[field] if field in self._changes else getattr(self._record, field)
        return value

    def _set(self, field: str, value: Any) -> None:
        if value != getattr(self._record, field):
            self._changes[field] = value

    # -- the wait

    def _split_wait(self) -> None:
        record, sources = self._record, self._sources
        wait = (*_WAIT, "decode") if self._without_tokens() else _WAIT
        length = record.unattributed_ns or 0
        known: dict[str, _Part] = {}
        best: dict[str, _Part] = {}
        news = False
        for stage in wait:
            said: _Part | None = None
            value = record.queue_engine_ns if stage == "queue" else getattr(record, _FIELD[stage])
            if value is not None:
                said = known[stage] = _part(value, sources.get(QUEUE_ENGINE if stage == "queue" else stage, ""))
                length += value
            better = self._best(stage, said)
            if better is not None:
                best[stage] = better
                news |= better is not said
        if not news or not length:
            return
        # The better known takes its time first; among equals the record's own, then the order of a life.
        left = length
        for stage in sorted(best, key=lambda stage: (-best[stage].strength, best[stage] is not known.get(stage))):
            part = best[stage]
            text = part.source
            if part.value > left:
                text = with_note(text, f"clamped from {part.value / MS:.3f} ms")
            value = min(part.value, left)
            left -= value
            if stage == "queue":
                self._set_queue(value, text, part.strength)
            else:
                self._set(_FIELD[stage], value)
                sources[stage] = text
        self._set("unattributed_ns", left or None)
        if left:
            sources["unattributed"] = _REMAINDER
        else:
            sources.pop("unattributed", None)

    def _without_tokens(self) -> bool:
        """Whether no token was seen, so that the wait reaches to the answer's end and `decode` is a part of it."""
        record = self._record
        if record.ttft_upstream_ns is not None or record.ttft_ns is not None:
            return False
        return not self._sources.get("decode", "").startswith(_MEASURED)

    def _best(self, stage: str, known: _Part | None) -> _Part | None:
        best = known
        for one in self._late:
            value = getattr(one, _FIELD[stage])
            if value is None or value < 0:
                continue
            said = _part(value, self._source_of(one, stage))
            if best is None or said.strength > best.strength:
                best = said
        longest = self._longest_part(stage) if self._of_parts else None
        if longest is not None and (best is None or (best.strength < longest.strength and best.value < longest.value)):
            best = longest
        return best

    def _longest_part(self, stage: str) -> _Part | None:
        """A stage of which only parts are known lasted at least as long as the longest: they may overlap."""
        best: _Part | None = None
        for one in self._of_parts:
            for name, value in one.parts_ns.items():
                if name.partition(".")[0] == stage and _is_part(name) and value > (best.value if best else 0):
                    best = _part(value, with_note(self._source_of(one, name), "its longest part"))
        return best

    def _set_queue(self, value: int, text: str, strength: int) -> None:
        record, sources = self._record, self._sources
        before = (record.queue_ns or 0) - (record.queue_engine_ns or 0)
        self._set("queue_ns", before + value)
        self._set("queue_engine_ns", value)
        sources[QUEUE_ENGINE] = text
        # As in the account: a stage of several pieces is known as well as its weakest.
        rest = sources.get(QUEUE_GATEWAY, "")
        if not rest and record.queue_ns is not None and record.queue_engine_ns is None:
            rest = sources.get("queue", "")
        sources["queue"] = rest if rest and strength >= _part(0, rest).strength else text

    def _source_of(self, one: Amendment, name: str) -> str:
        named = one.sources.get(name) or (one.sources.get(QUEUE_ENGINE) if name == "queue" else None)
        return named or (f"{_REPORTED}({one.origin})" if one.origin else _REPORTED)

    # -- parts

    def _add_parts(self) -> None:
        record, sources = self._record, self._sources
        parts = {name: _part(value, sources.get(name, _REPORTED)) for name, value in record.parts_ns.items()}
        for one in self._of_parts:
            said = {name: value for name, value in one.parts_ns.items() if _is_part(name)}
            if one.postprocess_ns is not None and record.postprocess_ns is not None:
                said.setdefault(SERVICES_BEHIND, one.postprocess_ns)
            for name, value in said.items():
                spoken = name if name in one.sources or name != SERVICES_BEHIND else "postprocess"
                part = _part(value, self._source_of(one, spoken))
                known = parts.get(name)
                if value >= 0 and (known is None or part.strength > known.strength):
                    parts[name] = part
        out: dict[str, int] = {}
        for name, part in parts.items():
            whole = self._stage(name.partition(".")[0]) if _is_part(name) else part.value
            if whole is None:
                # Its stage was never reached, as far as anybody knows: nothing that it could be a part of.
                sources.pop(name, None)
                continue
            text = part.source
            if part.value > whole:
                text = with_note(text, f"clamped from {part.value / MS:.3f} ms")
            out[name] = min(part.value, whole)
            if name in sources or name not in record.parts_ns or text != part.source:
                sources[name] = text
        self._set("parts_ns", dict(sorted(out.items())))

    # -- facts

    def _add_facts(self) -> None:
        record = self._record
        origins: dict[str, str] = {}
        for name in _FACTS:
            if getattr(record, name) not in (None, ""):
                continue
            for one in self._late:
                value = getattr(one, name)
                if value in (None, "") or (isinstance(value, int) and value < 0):
                    continue
                self._changes[name] = value
                origins[name] = one.origin
                break
        if origins:
            self._changes["fact_sources"] = {**record.fact_sources, **origins}


def _is_part(name: str) -> bool:
    """Whether it names a part that may stand in `parts_ns`: `stage.part` of a stage that somebody can report."""
    stage, dot, part = name.partition(".")
    if not dot or not part or name in (QUEUE_GATEWAY, QUEUE_ENGINE):
        return False
    return stage in STAGES and stage != Stage.UNATTRIBUTED
