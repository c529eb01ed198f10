"""What became known of a request after its record was written: an engine's spans, the end of a cancelled slot.

A record is never rewritten. Amendments lie in a table of their own and are joined when records are read.
"""

from __future__ import annotations

from typing import Final

import msgspec

SCHEMA: Final = 1
"""Version of the amendment; fields may be added under one number."""


class Amendment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One late report on one request. Durations are integer nanoseconds (`_ns`); `None` means "not said".

    It belongs to the record with this `request_id`; where that is empty, to the record of this `trace_id` whose span
    it lies below: `parent_span_id` is the record's `span_id`, or the `span_id` of another amendment that leads there.
    """

    schema: int = SCHEMA
    received_unix_ns: int
    """Wall clock when it reached us; for ordering and retention only."""
    origin: str
    """Who said it: `vllm span llm_request`, `triton trace`, `service:retriever span`, `gateway`."""
    request_id: str = ""
    trace_id: str = ""
    parent_span_id: str = ""
    span_id: str = ""

    queue_ns: int | None = None
    """Inside the engine; as `queue.engine` of the record."""
    preprocess_ns: int | None = None
    encode_ns: int | None = None
    prefill_ns: int | None = None
    decode_ns: int | None = None
    """Used only where no token was seen, as `EngineTimings.decode_ns`."""
    postprocess_ns: int | None = None
    parts_ns: dict[str, int] = {}
    """Parts by name: `preprocess.tokenize`. Each is contained in its stage."""
    sources: dict[str, str] = {}
    """Stage or part -> source, as `model.stage.source` spells it."""
    cached_tokens: int | None = None
    preemptions: int | None = None
    finish_reason: str = ""
    cancel_slot_ns: int | None = None
    """Why it is over was seen -> the engine's slot was seen free."""
