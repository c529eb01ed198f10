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
NEEDED: Final = (
    *AMENDABLE,
    "request_id",
    "vantage",
    "trace_id",
    "span_id",
    "parent_id",
    "start_unix_ns",
    "outcome",
    "reason",
    "e2e_ns",
    "ingress_ns",
    "queue_gateway_ns",
    "postprocess_ns",
    "response_ns",
    "ttft_ns",
    "ttft_upstream_ns",
)
"""The fields that `amend` and `lineage.share_out` read: a record that has only these is amended like the whole."""
SERVICES_BEHIND: Final = "postprocess.upstream"
"""The part of `postprocess` that a service between us and the engine accounts for."""

_WAIT: Final = ("queue", "preprocess", "encode", "prefill")
_STRENGTH: Final = {SourceKind.INFERRED.value: 1, SourceKind.REPORTED.value: 2, SourceKind.MEASURED.value: 3}
_REMAINDER: Final = source(SourceKind.INFERRED, "remainder")
_FACTS: Final = ("cached_tokens", "preemptions", "finish_reason", "cancel_slot_ns")


class _Part(msgspec.Struct, frozen=True):
    """What is known of one stage or part, and by whom."""

    value: int
    source: str

    @property
    def strength(self) -> int:
        return _STRENGTH.get(self.source.partition("(")[0], 1)


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
    def __init__(self, record: RequestRecord, late: list[Amendment]) -> None:
        self._record = record
        self._late = late
        self._sources = dict(record.stage_sources)
        self._changes: dict[str, Any] = {}

    def done(self) -> RequestRecord:
        record = self._record
        values = self._split_wait()
        self._add_parts(values)
        self._add_facts()
        if self._sources != record.stage_sources:
            self._changes["stage_sources"] = self._sources
        changes = {name: value for name, value in self._changes.items() if value != getattr(record, name)}
        return msgspec.structs.replace(record, **changes) if changes else record

    # -- the wait

    def _split_wait(self) -> dict[str, int | None]:
        """Split it again; returns every stage's value after that."""
        record = self._record
        stages: dict[str, int | None] = {stage: record.stage_ns(stage) for stage in STAGES}
        wait = (*_WAIT, "decode") if self._without_tokens() else _WAIT
        known: dict[str, _Part] = {}
        for stage in wait:
            value = record.queue_engine_ns if stage == "queue" else stages[stage]
            if value is not None:
                known[stage] = _Part(value, self._sources.get(QUEUE_ENGINE if stage == "queue" else stage, "inferred"))
        length = sum(part.value for part in known.values()) + (record.unattributed_ns or 0)
        best = {stage: part for stage in wait if (part := self._best(stage, known.get(stage))) is not None}
        if best == known or not length:
            return stages
        # The better known takes its time first; among equals, the order of a life.
        left, cut = length, {}
        for stage in sorted(best, key=lambda stage: (-best[stage].strength, best[stage] is not known.get(stage))):
            part = best[stage]
            cut[stage] = part
            if part.value > left:
                cut[stage] = _Part(left, with_note(part.source, f"clamped from {part.value / MS:.3f} ms"))
            left -= cut[stage].value
        for stage, part in cut.items():
            if stage == "queue":
                self._set_queue(part, stages)
            else:
                stages[stage] = self._changes[f"{stage}_ns"] = part.value
                self._sources[stage] = part.source
        stages["unattributed"] = self._changes["unattributed_ns"] = left or None
        if left:
            self._sources["unattributed"] = _REMAINDER
        else:
            self._sources.pop("unattributed", None)
        return stages

    def _without_tokens(self) -> bool:
        """Whether no token was seen, so that the wait reaches to the answer's end and `decode` is a part of it."""
        record = self._record
        if record.ttft_upstream_ns is not None or record.ttft_ns is not None:
            return False
        return not self._sources.get("decode", "").startswith(SourceKind.MEASURED.value)

    def _best(self, stage: str, known: _Part | None) -> _Part | None:
        best = known
        for one in self._late:
            value = getattr(one, f"{stage}_ns")
            if value is None or value < 0:
                continue
            said = _Part(value, self._source_of(one, stage))
            if best is None or said.strength > best.strength:
                best = said
        longest = self._longest_part(stage)
        if longest is not None and (best is None or (best.strength < longest.strength and best.value < longest.value)):
            best = longest
        return best

    def _longest_part(self, stage: str) -> _Part | None:
        """A stage of which only parts are known lasted at least as long as the longest: they may overlap."""
        best: _Part | None = None
        for one in self._late:
            for name, value in one.parts_ns.items():
                if name.partition(".")[0] == stage and _is_part(name) and value > (best.value if best else 0):
                    best = _Part(value, with_note(self._source_of(one, name), "its longest part"))
        return best

    def _set_queue(self, part: _Part, stages: dict[str, int | None]) -> None:
        record = self._record
        before = (record.queue_ns or 0) - (record.queue_engine_ns or 0)
        stages["queue"] = self._changes["queue_ns"] = before + part.value
        self._changes["queue_engine_ns"] = part.value
        self._sources[QUEUE_ENGINE] = part.source
        # As in the account: a stage of several pieces is known as well as its weakest.
        rest = self._sources.get(QUEUE_GATEWAY, "") or (
            self._sources.get("queue", "") if record.queue_ns is not None and record.queue_engine_ns is None else ""
        )
        weakest = not rest or part.strength < _Part(0, rest).strength
        self._sources["queue"] = part.source if weakest else rest

    def _source_of(self, one: Amendment, name: str) -> str:
        named = one.sources.get(name) or (one.sources.get(QUEUE_ENGINE) if name == "queue" else None)
        return named or source(SourceKind.REPORTED, one.origin)

    # -- parts

    def _add_parts(self, stages: dict[str, int | None]) -> None:
        record = self._record
        parts = {
            name: _Part(value, self._sources.get(name, source(SourceKind.REPORTED)))
            for name, value in record.parts_ns.items()
        }
        for one in self._late:
            said = {name: value for name, value in one.parts_ns.items() if _is_part(name)}
            if one.postprocess_ns is not None and stages["postprocess"] is not None:
                said.setdefault(SERVICES_BEHIND, one.postprocess_ns)
            for name, value in said.items():
                spoken = name if name in one.sources or name != SERVICES_BEHIND else "postprocess"
                part = _Part(value, self._source_of(one, spoken))
                known = parts.get(name)
                if value >= 0 and (known is None or part.strength > known.strength):
                    parts[name] = part
        out: dict[str, int] = {}
        for name, part in parts.items():
            stage = name.partition(".")[0]
            whole = stages.get(stage) if _is_part(name) else part.value
            if whole is None:
                # Its stage was never reached, as far as anybody knows: nothing that it could be a part of.
                self._sources.pop(name, None)
                continue
            text = part.source
            if part.value > whole:
                text = with_note(text, f"clamped from {part.value / MS:.3f} ms")
            out[name] = min(part.value, whole)
            if name in self._sources or name not in record.parts_ns or text != part.source:
                self._sources[name] = text
        if out != record.parts_ns:
            self._changes["parts_ns"] = dict(sorted(out.items()))

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
