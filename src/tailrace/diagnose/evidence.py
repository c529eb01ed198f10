"""What a diagnosis was given: the records of a window, the one before it, and what surrounds them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import count
from shlex import quote
from typing import Final

import numpy as np

from tailrace.analyze.timebase import in_order
from tailrace.analyze.vantage import split_applications, without_cached
from tailrace.diagnose.applications import ApplicationWindow
from tailrace.diagnose.attribution import Attributed
from tailrace.diagnose.hardware import Hardware
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.window import Window
from tailrace.model.engine_state import EngineState
from tailrace.model.measurement import ClientHealth
from tailrace.model.thresholds import Objectives
from tailrace.store.run_arrival import arrival_options
from tailrace.store.run_file import RunHeader
from tailrace.store.table import RecordTable

__all__ = ["EvidenceSet"]

ENGINE_URL: Final = "http://localhost:8000"
"""Where a command is to be tried that nobody told an address for."""


class EvidenceSet:
    """Everything that the rules may look at. `gather` builds it from sources.

    `states` are scrapes of the engine in order of time; two of them give the counters' deltas. `dropped` is the share
    of records that were lost. `before` is the window to compare with, if there is one. Records that services before the
    gateway have reported may be among the others: they are kept apart, as `applications`. `hardware` is what
    was seen of the machine and its accelerators, `observed` what foreign evidence says, `events` what is known to have
    happened: (wall clock in s, words), such as a deploy or a reloaded configuration. `left_out`: rule -> records that
    broke it and were left out, `left_out_rows` of them in all.
    """

    def __init__(
        self,
        table: RecordTable,
        *,
        before: RecordTable | None = None,
        header: RunHeader | None = None,
        client: ClientHealth | None = None,
        states: list[EngineState] | None = None,
        objectives: Objectives | None = None,
        dropped: float = 0.0,
        sources: list[str] | None = None,
        not_understood: list[str] | None = None,
        hardware: Hardware | None = None,
        observed: Observed | None = None,
        events: Sequence[tuple[float, str]] = (),
        left_out: dict[str, int] | None = None,
        left_out_rows: int = 0,
        before_source: str = "",
    ) -> None:
        ours, self.applications = (in_order(one) for one in split_applications(table))
        self.table = without_cached(ours)
        self.before_table = None if before is None else without_cached(in_order(split_applications(before)[0]))
        self.header = header
        self.client = client or ClientHealth()
        self.states = sorted(states or [], key=lambda state: state.at_ns)
        self.objectives = objectives or (header.objectives if header else Objectives())
        self.dropped = dropped
        self.sources = sources or []
        self.not_understood = not_understood or []
        self.hardware = hardware or Hardware()
        self.observed = observed or Observed()
        self.events = sorted(events)
        self.left_out = left_out or {}
        self.left_out_rows = left_out_rows
        self.before_source = before_source
        """What the window to compare with was read from, where it was named."""

    def with_table(
        self, table: RecordTable, *, left_out: dict[str, int] | None = None, left_out_rows: int = 0
    ) -> EvidenceSet:
        """The same evidence with other records of the window: those that a validity check left."""
        return EvidenceSet(
            RecordTable.concat([table, self.applications]),
            before=self.before_table,
            header=self.header,
            client=self.client,
            states=self.states,
            objectives=self.objectives,
            dropped=self.dropped,
            sources=self.sources,
            not_understood=self.not_understood,
            hardware=self.hardware,
            observed=self.observed,
            events=self.events,
            left_out=left_out,
            left_out_rows=left_out_rows,
            before_source=self.before_source,
        )

    @cached_property
    def attributed(self) -> Attributed:
        """Where the tail, or its change, lies."""
        return Attributed(self)

    @cached_property
    def meanwhile(self) -> Hardware:
        """What was seen of the machine while the window's requests lived."""
        return self.hardware.within(self.now)

    @cached_property
    def device_use(self) -> float | None:
        """Use of the accelerators while the window's requests lived (0..1, median of the readings)."""
        used = [state.utilisation for state in self.meanwhile.gpus if state.utilisation is not None]
        return float(np.median(used)) if used else None

    @cached_property
    def now(self) -> Window:
        """The window in question."""
        return Window(self.table)

    @cached_property
    def application(self) -> ApplicationWindow:
        """The same window as the services before the gateway report it."""
        return ApplicationWindow(self.applications)

    @cached_property
    def before(self) -> Window | None:
        """The window before, if one was given."""
        return None if self.before_table is None else Window(self.before_table)

    @property
    def vantage(self) -> str:
        """Whose clock the records are on: `gateway`, `client` or `simulated`."""
        return str(self.table.column("vantage")[0]) if len(self.table) else ""

    @property
    def knobs(self) -> dict[str, object]:
        """The engine's settings, as far as the run's header knows them."""
        return self.header.knobs if self.header else {}

    @property
    def verify_command(self) -> str:
        """The command that repeats this measurement after a change and judges it."""
        header = self.header
        before = self.sources[0] if header and self.sources else "before.run"
        # Never the name of what was given: the command would write over the evidence and compare it with itself.
        given = {name.rsplit("/", maxsplit=1)[-1] for name in (*self.sources, self.before_source)}
        after = next(name for number in count(1) if (name := f"after{f'-{number}' * (number > 1)}.run") not in given)
        if header is None or not header.target.startswith("http"):
            rate = len(self.now.every) / self.now.span_s if self.now.span_s > 0 else 5.0
            return (
                f"tailrace bench {ENGINE_URL} --rate {max(rate, 0.01):.3g} --duration 60 --out {after} && tailrace "
                f"compare {quote(before)} {after}"
            )
        arrival = header.arrival
        load = arrival_options(arrival)
        span = max(60, round(self.now.span_s))
        parts = [f"tailrace bench {header.target} {load} --duration {span}"]
        if header.mix:
            parts.append(f"--mix '{header.mix}'")
        if arrival.seed is not None:
            parts.append(f"--seed {arrival.seed}")
        return " ".join(parts) + f" --out {after} && tailrace compare {quote(before)} {after}"

    # -- engine state, from scrapes or from what the records saw

    @cached_property
    def kv_usage(self) -> float | None:
        """High KV usage of the window (0..1): p95 of what records saw, or the highest scrape."""
        seen = self.now.kv_usage_p95
        scraped = [state.kv_usage for state in self.states if state.kv_usage is not None]
        both = ([] if seen is None else [seen]) + scraped
        return max(both) if both else None

    @cached_property
    def preemptions(self) -> float | None:
        """Preemptions in the window: the counter's delta between first and last scrape, or the records' sum."""
        counted = [state.preemptions_total for state in self.states if state.preemptions_total is not None]
        if len(counted) >= 2:
            return max(0.0, counted[-1] - counted[0])
        of_records = self.now.preempted
        return None if of_records is None else float(of_records.sum())

    @property
    def preemptions_source(self) -> str:
        """Where `preemptions` comes from."""
        named = next(
            (state.names["preemptions_total"] for state in self.states if "preemptions_total" in state.names), ""
        )
        return f"metric:{named}" if len(self.states) >= 2 and named else "record:preemptions"
