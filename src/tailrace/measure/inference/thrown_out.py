"""Preemptions that the engine does not tell by request: the steps that one stream missed while others went on.

A running request gets a token at every step. One whose memory was taken from it waits in the engine, outside of its
queue time, until it is taken up again and its prompt is computed anew: a gap in its tokens during which its neighbours
got theirs. An engine or a host that stands still stops all streams at once, a slow client is known by its own blocked
time, and tokens that came together show as more tokens than events: none of these is a preemption.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tailrace.measure.inference.scene import Heard, Scene

MISSED: Final = 3
"""Steps that others must have had meanwhile. One or two may be an answer that was read late."""
DENSE: Final = 0.95
"""Events a token below which gaps are no missed steps: the stream came in bundles."""
_WIDE: Final = 3
"""A gap this many times the median may hold a preemption: computing the prompt anew takes several steps."""


def may_have_been(gap_max_ns: int | None, gap_p50_ns: int | None) -> bool:
    """Whether a stream with these gaps is worth a closer look."""
    return gap_max_ns is not None and gap_p50_ns is not None and gap_max_ns >= _WIDE * gap_p50_ns > 0


def preemptions(me: Heard, scene: Scene, *, gap_p50_ns: int, blocked: Sequence[tuple[int, int]] = ()) -> int:
    """How often the engine threw this stream out, as its neighbours' tokens show.

    `gap_p50_ns`: the median of its gaps; `blocked`: when its client took nothing (absolute ns).
    """
    stamps = me.stamps
    count = 0
    for index in range(1, len(stamps)):
        low, high = stamps[index - 1], stamps[index]
        if high - low < _WIDE * gap_p50_ns or (me.first is not None and low < me.first):
            continue
        if any(start < high and end > low for start, end in blocked):
            continue
        count += scene.steps_of_another(me, low, high) >= MISSED
    return count
