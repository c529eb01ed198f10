"""What becomes of an answer after the engine's core: its tokens' times, carried along the path to the reader."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.model.thresholds import MS
from tailrace.simulate.cost import PS_PER_NS
from tailrace.simulate.incidents.blocks import TwoLoops
from tailrace.simulate.incidents.flow import Flow
from tailrace.simulate.incidents.path import (
    Chunks,
    Stamps,
    held_by_parser,
    merged,
    over_network,
    through_proxy,
    to_reader,
)
from tailrace.simulate.incidents.replica import Replica
from tailrace.simulate.incidents.site import Site
from tailrace.simulate.request import State

_CLOSING_NS: Final = 120_000
"""The usage frame and the end marker follow the last token."""
_MARKS: Final = 3


_ONES: Final = np.ones(4096, dtype=np.int64)


def _ones(size: int) -> Stamps:
    return _ONES[:size] if size <= _ONES.size else np.ones(size, dtype=np.int64)


class Answers:
    """Completes the account of a flow when the engine is done with it."""

    def __init__(self, site: Site, loop: TwoLoops) -> None:
        self._site = site
        self._loop = loop

    def made(self, flow: Flow, replica: Replica) -> None:
        """Set what was seen of its answer: the events as they came, what the engine reported, and the end."""
        site, steps = self._site, replica.steps
        steps.follow(replica.engine.log)
        requests = flow.requests
        ended = max(request.ended_at for request in requests) // PS_PER_NS
        finished = all(request.state is State.FINISHED for request in requests)
        scheduled = [request.scheduled_at for request in requests if request.scheduled_at is not None]
        spans = [steps.of(request.spans) for request in requests if request.spans]
        if scheduled and spans:
            first_scheduled = min(scheduled) // PS_PER_NS
            queued = flow.queued_ts if flow.queued_ts is not None else first_scheduled
            first = min(int(one[0]) for one in spans)
            flow.reported = (max(first_scheduled - queued, 0), first - first_scheduled)
        flow.preemptions = sum(request.preemptions for request in requests)
        if flow.step_at_sent and steps.count >= flow.step_at_sent + _MARKS - 1:
            ends = steps.of([(flow.step_at_sent, flow.step_at_sent + _MARKS - 1)])
            flow.marks = tuple((replica.loop.passed(ends) + round(site.hop.latency_ms * MS)).tolist())
        if not spans:
            flow.end = flow.cut_at or ended
            return
        core = spans[0] if len(spans) == 1 else np.sort(np.concatenate(spans))
        chunks = self._sent_by_engine(flow, replica, core)
        rng = np.random.Generator(np.random.PCG64(flow.draw.seed))
        last = int(chunks.at[-1])
        done = last if replica.service is None else self._after(flow, replica, last)
        if flow.call.stream:
            chunks = through_proxy(chunks, site.hop, hold=flow.draw.hold < site.hop.hold_share)
        else:
            chunks = Chunks(np.array([done], dtype=np.int64), np.array([core.size], dtype=np.int64))
        chunks, flow.lost = over_network(chunks, site.hop, rng)
        chunks = chunks._replace(at=self._loop.passed(chunks.at))
        delivered = to_reader(chunks, site.client, slow=flow.draw.slow < site.client.slow_share and flow.call.stream)
        flow.chunks, flow.delivered = chunks, delivered
        rest = max(done - last, 0) + _CLOSING_NS
        flow.upstream_end = int(delivered.read[-1]) + rest if flow.call.stream else int(delivered.read[-1])
        flow.end = max(int(delivered.written[-1]), flow.upstream_end) + 40_000
        if not finished or flow.cut_at is not None:
            flow.end = flow.cut_at if flow.cut_at is not None else ended
            flow.upstream_end = None

    def _sent_by_engine(self, flow: Flow, replica: Replica, core: Stamps) -> Chunks:
        """The API server's loop sends what the core has made, when it gets to it."""
        front = self._site.front
        at = replica.loop.passed(core)
        chunks = Chunks(at, _ones(core.size))
        if at is not core or len(flow.requests) > 1:
            chunks = merged(chunks)
        if flow.call.tool and flow.draw.parser < front.held_share:
            chunks = held_by_parser(chunks, front)
        return chunks

    @staticmethod
    def _after(flow: Flow, replica: Replica, last: int) -> int:
        service = replica.service
        assert service is not None
        factor = float(np.exp(service.service.spread * np.log(flow.draw.after / (1 - flow.draw.after)) / 1.702))
        return service.after(last, factor)
