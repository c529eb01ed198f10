"""Several sources become one body of evidence."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tailrace.analyze.inferred_waits import with_inferred
from tailrace.analyze.vantage import split_applications
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.hardware import Hardware
from tailrace.diagnose.observed import Arm, Observed
from tailrace.diagnose.readers.gpu_series import series_of_gpus
from tailrace.diagnose.readers.metric_observations import observations_of
from tailrace.diagnose.readers.request_table import windows_of_requests
from tailrace.diagnose.readers.roles import with_roles
from tailrace.diagnose.readers.source import Kind, Source
from tailrace.model.engine_state import EngineState
from tailrace.model.errors import InputError
from tailrace.model.thresholds import Objectives
from tailrace.store.table import RecordTable

__all__ = ["gather"]


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
    observed.arms = _apart(observed.arms)
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
            "these sources hold no records of requests",
            place=", ".join(source.name for source in sources),
            remedy="Add a run file, records as JSON lines, or a gateway's data directory.",
        )
    if before is not None and before.table is None:
        raise InputError("it holds no records of requests", place=before.name, remedy="Give a run file or records.")
    earlier = before.table if before is not None else None
    windows = windows_of_requests(observed) if before is None and not _has_records(sources) else None
    if windows is not None:
        earlier, tables = windows[0], [windows[1]]
    runs = [source.run for source in sources if source.run is not None]
    limited = next((run.trailer.client for run in runs if run.trailer and run.trailer.client.limited), None)
    first = runs[0].trailer.client if runs and runs[0].trailer else None
    return EvidenceSet(
        RecordTable.concat(tables) if len(tables) > 1 else tables[0] if tables else RecordTable.from_records([]),
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
    )


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
