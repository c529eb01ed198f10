"""TensorRT-LLM's log with `print_iter_log`: one line a step, with what was computed in it and how long it took.

    iter = 425, global_rank = 0, rank = 0, currank_total_requests = 0/0, host_step_time = 31.2ms,
    prev_device_step_time = 30.6ms, timestamp = 2025-11-03 10:00:00, num_scheduled_requests: 64,
    states = {'num_ctx_requests': 0, 'num_ctx_tokens': 0, 'num_generation_tokens': 64}

Older versions write `elapsed_time = 0.031s`. Ranks step together: the first one stands for all.
"""

from __future__ import annotations

import re
from typing import Final

from tailrace.diagnose.observed import Clock, Place, Series
from tailrace.diagnose.readers.logs.context import Context
from tailrace.diagnose.readers.logs.samples import Samples

__all__ = ["TrtLlm"]

STEPS: Final = ("step", "step_prefills", "step_prompt_tokens", "step_decodes", "running")
_ITER: Final = re.compile(rb"iter = (\d+)\b")
_RANK: Final = re.compile(rb"global_rank = (\d+)")
_TOOK: Final = re.compile(rb"(?:host_step_time|elapsed_time) = ([\d.]+) ?(ms|s)\b")
_STATES: Final = re.compile(rb"'(num_\w+)': (\d+)")
_SCHEDULED: Final = re.compile(rb"num_scheduled_requests[:=] ?(\d+)")
_STAMP: Final = re.compile(rb"timestamp = (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)")


class TrtLlm:
    """What its steps say."""

    dialect = "tensorrt-llm log"

    def __init__(self, context: Context) -> None:
        """`context` gives the stamps."""
        self.context = context
        self._steps = Samples(STEPS)
        self._rank = b""

    def line(self, text: bytes) -> bool:
        """A line of one step; False where it is none."""
        states = {name: float(value) for name, value in _STATES.findall(text)}
        took = [float(value) * (1e3 if unit == b"s" else 1.0) for value, unit in _TOOK.findall(text)]
        if not states or not took or _ITER.search(text) is None:
            return False
        rank = _RANK.search(text)
        if rank is not None:
            self._rank = self._rank or rank[1]
            if rank[1] != self._rank:
                return self.context.understood(self.dialect)
        own = _STAMP.search(text)
        stamp = self.context.stamp(own[1] if own is not None else text)
        if stamp is not None and stamp[1] is not Clock.NONE:
            self.context.clock = stamp[1]
        prefills = states.get(b"num_ctx_requests", 0.0)
        scheduled = _SCHEDULED.search(text)
        decodes = max(float(scheduled[1]) - prefills, 0.0) if scheduled else states.get(b"num_generation_tokens", 0.0)
        row = (
            float("nan") if stamp is None else stamp[0],
            float(self.context.number),
            took[-1],
            prefills,
            states.get(b"num_ctx_tokens", 0.0),
            decodes,
            prefills + decodes,
        )
        self._steps.add(row)
        return self.context.understood(self.dialect)

    def series(self, source: str) -> list[Series]:
        """All steps."""
        return self._steps.series({"engine": "0", "line": "step"}, Place(source), self.context.clock)
