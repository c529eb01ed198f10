"""A workload on the engine in virtual time: requests in, records out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import SlowThresholds
from tailrace.simulate.cost import PS_PER_NS, StepCost
from tailrace.simulate.counters import EngineCounters
from tailrace.simulate.engine import Engine
from tailrace.simulate.knobs import EngineKnobs
from tailrace.simulate.records import Keep, RecordBuilder
from tailrace.simulate.request import SimRequest
from tailrace.workload.plan import PlannedRequest
from tailrace.workload.trace import TraceRow

_BATCH: Final = 2048
"""Requests taken in at a time: memory stays bounded however long the workload is."""
MOONCAKE_BLOCK_TOKENS: Final = 512


class VirtualRun:
    """One engine in virtual time. Iterate `records(requests)`; afterwards `counters` and `now_ns` say how it went."""

    def __init__(
        self,
        knobs: EngineKnobs,
        cost: StepCost,
        *,
        model: str = "",
        backend: str = "",
        unix_ns: int = 0,
        thresholds: SlowThresholds | None = None,
        keep_timelines: Keep = "sampled",
    ) -> None:
        self.engine = Engine(knobs, cost)
        self._builder = RecordBuilder(
            self.engine.log,
            model=model,
            backend=backend,
            unix_ns=unix_ns,
            thresholds=thresholds,
            keep_timelines=keep_timelines,
        )

    @property
    def counters(self) -> EngineCounters:
        """What the engine counted."""
        return self.engine.counters

    @property
    def now_ns(self) -> int:
        """Simulated time (ns): the end of the last step."""
        return self.engine.now // PS_PER_NS

    def records(self, requests: Iterable[SimRequest], *, batch_size: int = _BATCH) -> Iterator[RequestRecord]:
        """Run all requests (in order of arrival) to the end; records come in the order in which requests end.

        So many requests are taken in at a time: it bounds the memory and changes nothing else.
        """
        source = iter(requests)
        while batch := list(islice(source, batch_size)):
            for request in batch:
                self.engine.submit(request)
            # The engine must see the next arrival before it skips over it: run up to the last one that it knows.
            self.engine.advance(batch[-1].arrival)
            yield from self._drain()
        self.engine.advance()
        yield from self._drain()

    def _drain(self) -> list[RequestRecord]:
        engine = self.engine
        records = self._builder.build(engine.ended)
        engine.ended.clear()
        engine.log.forget(engine.oldest_token_step() - 1)
        return records


def from_plan(requests: Iterable[PlannedRequest], *, max_model_len: int | None = None) -> Iterator[SimRequest]:
    """Planned requests of an open loop as the engine's. Outputs are capped where prompt and output exceed the model."""
    for planned in requests:
        if planned.at_ns is None:
            raise ValueError("a closed loop has no arrivals to simulate")
        output = planned.output_tokens
        if max_model_len is not None:
            output = max(1, min(output, max_model_len - planned.prompt_tokens))
        yield SimRequest(
            f"sim-{planned.number:07d}",
            planned.prompt_tokens,
            output,
            planned.at_ns * PS_PER_NS,
            tag=planned.name,
            max_tokens=output,
        )


def from_trace(rows: Iterable[TraceRow]) -> Iterator[SimRequest]:
    """Rows of a recorded trace at their own times; prefix hashes where the trace has them."""
    for number, row in enumerate(rows):
        yield SimRequest(
            f"trace-{number:07d}",
            row.prompt_tokens,
            row.output_tokens,
            row.at_ns * PS_PER_NS,
            prefix=row.blocks,
            prefix_tokens=row.block_tokens,
            tag=row.name or "trace",
            max_tokens=row.output_tokens,
        )
