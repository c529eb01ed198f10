"""Several sources become one body of evidence."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tailrace.analyze.inferred_waits import with_inferred
from tailrace.analyze.vantage import split_applications
from tailrace.diagnose.arms.by_change import with_changed
from tailrace.diagnose.bounds import bounded
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.hardware import Hardware
from tailrace.diagnose.observed import Arm, Observed
from tailrace.diagnose.readers.arm_series import series_of_arms
from tailrace.diagnose.readers.gpu_series import series_of_gpus
from tailrace.diagnose.readers.metric_observations import observations_of
from tailrace.diagnose.readers.request_arms import arms_of_requests
from tailrace.diagnose.readers.request_table import LEAST_ROWS, windows_of_requests
from tailrace.diagnose.readers.roles import with_roles
from tailrace.diagnose.readers.source import Kind, Source
from tailrace.diagnose.readers.stated_arm import stated_arm
from tailrace.model.engine_state import EngineState
from tailrace.model.errors import InputError
from tailrace.model.thresholds import Objectives
from tailrace.store.table import RecordTable

__all__ = ["gather"]


def _joined(tables: Sequence[RecordTable]) -> tuple[RecordTable, int]:
    """One table of all, and how many rows were there already: a copy of a file is no second sample."""
    if not tables:
        return RecordTable.from_records([]), 0
    if len(tables) == 1:
        return tables[0], 0
    table = RecordTable.concat(tables)
    columns = [table.column(name).tolist() for name in ("request_id", "start_unix_ns", "e2e_ns", "vantage")]
    seen: set[tuple[object, ...]] = set()
    fresh = np.ones(len(table), dtype=bool)
    edge = len(tables[0])
    for row, key in enumerate(zip(*columns, strict=True)):
        # Within the first source rows stay as they are: two alike there are two requests without an id.
        if row >= edge and key in seen:
            fresh[row] = False
        else:
            seen.add(key)
    copies = len(table) - int(fresh.sum())
    return (table.where(fresh) if copies else table), copies


def gather(
    sources: Sequence[Source], *, before: Source | None = None, objectives: Objectives | None = None
) -> EvidenceSet:
    """Join sources: records are stacked, scrapes give engine states, the first run gives header and client.

    InputError when no source holds records, hardware or foreign evidence: one scrape alone says nothing.
    """
    # A load generator's run may not say how long its engine queued; what its timelines give away, it may have.
    tables = [_with_inferred(source.table) for source in sources if source.table is not None]
    tables += [source.applications for source in sources if source.applications is not None]
    notes = [note for source in sources for note in source.notes]
    hardware = Hardware()
    for source in sources:
        if source.hardware is not None:
            hardware = hardware.joined(source.hardware)
    observed = Observed.joined(source.observed for source in sources if source.observed is not None)
    readings = [reading for source in sources for reading in source.readings]
    if readings and not _has_records(sources):
        # Beside records of our own, scrapes serve the rules on records (`states`).
        observed = Observed.joined([observed, observations_of(readings)])
    if not _has_records(sources):
        gpus = [
            series
            for source in sources
            if source.kind is Kind.NVIDIA_SMI and source.hardware is not None
            for series in series_of_gpus(source.hardware.gpus, source.name.rsplit("/", 1)[-1])
        ]
        observed = Observed.joined([observed, Observed(series=gpus)])
    observed = observed.finite()
    observed.series += series_of_arms(observed.arms)
    observed = bounded(observed)
    _arms(observed)
    if observed and hardware.gpus and not observed.of_series("sm_clock"):
        # Rules on tables and forms see the device's readings beside them.
        observed.series += series_of_gpus(hardware.gpus, ", ".join(hardware.sources))
    summaries = [source.name for source in sources if source.aggregate is not None]
    if summaries and not tables and not hardware and not observed:
        raise InputError(
            "it holds percentiles, no requests; causes are found in requests",
            place=", ".join(summaries),
            remedy="Give the tool's own result with its requests (vllm: --save-detailed, SGLang: --output-details).",
        )
    if not tables and not hardware and not observed:
        raise InputError(
            "nothing in it was understood: no request, no number with a name, no line of a log that is known",
            place=", ".join(source.name for source in sources),
            remedy="Give the table, log or run file itself; `tailrace diagnose --help` names what is read.",
        )
    if before is not None and before.table is None:
        raise InputError("it holds no records of requests", place=before.name, remedy="Give a run file or records.")
    earlier, tables = _windows(sources, before, observed, tables)
    runs = [source.run for source in sources if source.run is not None]
    limited = next((run.trailer.client for run in runs if run.trailer and run.trailer.client.limited), None)
    first = runs[0].trailer.client if runs and runs[0].trailer else None
    table, copies = _joined(tables)
    if copies:
        notes.append(f"{copies} requests stand in more than one source: each is counted once")
    return EvidenceSet(
        table,
        before=None if earlier is None else with_inferred(earlier),
        header=runs[0].header if runs else None,
        client=limited or first,
        states=_states(sources),
        objectives=objectives,
        dropped=max(source.dropped for source in sources),
        sources=[source.name for source in sources],
        not_understood=notes,
        hardware=hardware,
        observed=observed,
        events=[event for source in sources for event in source.events],
        before_source="" if before is None else before.name,
    )


def _windows(
    sources: Sequence[Source], before: Source | None, observed: Observed, tables: list[RecordTable]
) -> tuple[RecordTable | None, list[RecordTable]]:
    """(the window before, the tables of the one in question): as given, or as a table of two arms says."""
    if before is None and not _has_records(sources):
        windows = windows_of_requests(observed)
        if windows is not None:
            return windows[0], [windows[1]]
    return (None if before is None else before.table), tables


def _arms(observed: Observed) -> None:
    """Its arms by names and roles; without any, those that a form or a table of requests names."""
    observed.arms = _apart(observed.arms) or stated_arm(observed)
    if not observed.arms and windows_of_requests(observed) is None:
        arms = arms_of_requests(observed)
        # Large tables are windows, which the rules on records compare where their order is known, and only there.
        small = all((arm.get("n") or 0.0) < LEAST_ROWS for arm in arms)
        observed.arms = arms if small or any(arm.role for arm in arms) else []
    observed.arms = list(with_changed(observed))


def _apart(arms: list[Arm]) -> list[Arm]:
    """Arms of several files, each with a name of its own; `before.txt` beside `after.txt` tells which is which."""
    seen: dict[str, int] = {}
    named = []
    for arm in arms:
        seen[arm.name] = seen.get(arm.name, 0) + 1
        again = seen[arm.name] > 1
        named.append(msgspec.structs.replace(arm, name=f"{arm.name} ({arm.place.source})") if again else arm)
    single = len({arm.place.source for arm in named}) == len(named)
    return with_roles(named) if single else named


def _with_inferred(table: RecordTable) -> RecordTable:
    """A service's time is not its engine's: nothing is inferred from a table of its records alone."""
    return table if split_applications(table)[1].timelines else with_inferred(table)


def _has_records(sources: Sequence[Source]) -> bool:
    """Whether somebody gave records with stages and timelines, and not a table of requests only."""
    return any(source.table is not None and source.kind is not Kind.OBSERVED for source in sources)


def _states(sources: Sequence[Source]) -> list[EngineState]:
    """Scrapes that were given; without any, those that the first run took of its engine while it went on."""
    given = [state for source in sources if source.state is not None for state in (*source.earlier, source.state)]
    runs = (source.run.states for source in sources if source.run is not None)
    return given or next(runs, [])
