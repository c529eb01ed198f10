"""Which requests an engine is asked to trace: a small random share, what callers ask for, what somebody looks into.

Engines decide at a request's start whether they trace it, and we know only at its end which one was slow. Asking for
every request would cost each of them a span for the few that matter (Triton traces whatever brings a parent, at any
`rate`). So it is a share, drawn by the trace's id and so the same in every process and replica, and bounded in number a
second whatever the load is. Slow requests outside of it have their stages from the answers' own fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic_ns
from typing import Final

from tailrace.gateway.config_sections import TracesConfig
from tailrace.gateway.trace import Trace, continue_trace

HEADER: Final = b"x-tailrace-trace"
_DIGITS: Final = 14
"""The last 56 bits of a trace id are the random ones: https://www.w3.org/TR/trace-context-2/#random-trace-id-flag"""


class Budget:
    """So many a second, and as many at once as come in one (at least one)."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._room = self._most = max(1.0, per_second) if per_second > 0 else 0.0
        self._at = 0
        self.granted = 0
        self.withheld = 0

    def take(self, now: int) -> bool:
        """Whether there is room for one more at `now` (ns, monotonic)."""
        if self._at:
            self._room = min(self._most, self._room + (now - self._at) * self._per_second / 1e9)
        self._at = now
        if self._room < 1.0:
            self.withheld += 1
            return False
        self._room -= 1.0
        self.granted += 1
        return True


class TraceShare:
    """A `Sampler`. The three reasons have a budget each: none can use up another's."""

    def __init__(self, config: TracesConfig, processes: int = 1) -> None:
        """`processes` share what is allowed a second."""
        self._below = ""
        self._as_configured: tuple[TracesConfig, int] | None = None
        self.budgets: dict[str, Budget] = {}
        self.reconfigure(config, processes)

    def reconfigure(self, config: TracesConfig, processes: int = 1) -> None:
        """Other bounds for the requests that come; what was counted stays."""
        if self._as_configured == (config, processes):
            return
        self._as_configured = (config, processes)
        below = min(round(config.share * 16**_DIGITS), 16**_DIGITS)
        # Text of equal length compares as the numbers do. `g` is above every digit: all of them.
        self._below = "g" if below == 16**_DIGITS else f"{below:0{_DIGITS}x}"
        before = self.budgets
        self.budgets = {why: Budget(config.per_second / processes) for why in ("share", "caller", "asked")}
        for why, budget in before.items():
            self.budgets[why].granted, self.budgets[why].withheld = budget.granted, budget.withheld

    def begins(self, trace_id: str) -> bool:
        """A trace that begins here: by lot, and within the budget."""
        return trace_id[-_DIGITS:] < self._below and self.budgets["share"].take(monotonic_ns())

    def goes_on(self) -> bool:
        """A caller that samples: it has drawn its lot already. Many sample everything, so the budget holds."""
        return self.budgets["caller"].take(monotonic_ns())

    def trace(self, named: Mapping[bytes, bytes], *, engine: str, endpoint: str) -> Trace:
        """A request's place in its trace."""
        asked = HEADER in named and named[HEADER].strip() == b"1" and self.budgets["asked"].take(monotonic_ns())
        only = engine == "triton" or (not engine and endpoint.startswith("/v2/"))
        return continue_trace(named.get(b"traceparent"), self, asked=asked, only_sampled=only)
