"""A recorded trace as a workload: the options `--trace`, `--trace-speed`, `--trace-from`, `--trace-to`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tailrace.workload.plan import Workload
    from tailrace.workload.trace import Trace

__all__ = ["TraceOptions", "with_trace"]


class TraceOptions(NamedTuple):
    """The options, as they were typed."""

    path: str
    speed: float = 1.0
    begin: str | None = None
    end: str | None = None
    columns: str | None = None

    def read(self, seed: int) -> Trace:
        """The trace. Raises `InputError` for a file that cannot be read or understood."""
        from tailrace.cli.traffic import trace_file

        return trace_file(self.path, speed=self.speed, seed=seed, begin=self.begin, end=self.end, columns=self.columns)


def with_trace(workload: Workload, trace: Trace, *, requests: int | None, duration_ns: int | None) -> Workload:
    """The workload with the trace's rows; played again where the run is longer than the trace, which its notes say."""
    import msgspec

    from tailrace.model.thresholds import S
    from tailrace.workload.process import ArrivalKind

    notes = [f"{trace.format} trace: {note}" for note in trace.notes]
    span: int | None = None
    longer = (duration_ns or 0) > trace.span_ns or (requests or 0) > len(trace.rows)
    if longer and workload.arrivals.kind is ArrivalKind.TRACE:
        span = trace.span_ns
        rounds = max((duration_ns or 0) / span, (requests or 0) / len(trace.rows))
        notes.append(f"the trace is {span / S:.0f} s long, and is played {rounds:.1f} times")
    return msgspec.structs.replace(workload, trace=trace.rows, trace_span_ns=span, trace_notes=notes)
