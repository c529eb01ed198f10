"""The wait that an engine's own queue time leaves out: until the step that runs when a request arrives has ended.

vLLM's engine takes new requests between two steps, and its queue time begins there. What passes before is in no field
of it, and on a busy engine it is as long as a step: more than a second was seen beside a prompt of 1,400 tokens on two
processor cores. The neighbours' tokens mark when that step ended; where the rest of the wait ends at such a mark too,
it was that.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.measure.engine_timings import EngineTimings
from tailrace.measure.inference.scene import Scene
from tailrace.model.stage import SourceKind, source
from tailrace.model.thresholds import MS

SMALL_NS: Final = 2 * MS
"""Sending, parsing and reading take that long: no step is looked for."""
_NEAR_NS: Final = 10 * MS
_NEAR_SHARE: Final = 0.1
"""How far from a mark the rest may end: the engine's answers leave through a process of their own, which is late
when it is busy."""
_MARKS: Final = 3
"""Steps that may have ended before the request reached the engine: its prompt is parsed first."""
_DETAIL: Final = source(SourceKind.INFERRED, "metrics.queue_time_ms + end of the running step")


def with_handover(said: EngineTimings, sent: int, wait_ns: int, scene: Scene) -> EngineTimings:
    """What the engine `said`, its queue longer by what was left of the step that ran when the request arrived.

    `sent`: when the request was sent (ns); `wait_ns`: from then to its first token, or for an answer in one piece to
    the decode that was said. The rest that nobody explains is that step as far as the neighbours' marks bear it out:
    all of it where no step ended meanwhile, else up to the mark that it reaches. What is beyond stays unattributed.
    """
    queue, prefill = said.queue_ns, said.prefill_ns
    if queue is None or prefill is None:
        return said
    rest = wait_ns - queue - prefill
    if rest <= SMALL_NS or scene.idle_at(sent):
        return said
    ends = [mark - sent for mark in scene.marks_after(sent, _MARKS)]
    if not ends:
        return said
    near = max(_NEAR_NS, round(_NEAR_SHARE * rest))
    shown = rest
    if rest > ends[0] + near:
        reached = max(end for end in ends if end <= rest + near)
        shown = rest if rest - reached <= near else reached
    return msgspec.structs.replace(said, queue_ns=queue + shown, sources={**said.sources, "queue": _DETAIL})
