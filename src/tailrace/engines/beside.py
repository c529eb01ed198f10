"""An engine's own counts beside ours, for the same stretch of time, and why they differ.

Engines do not count what went wrong: a request whose client left, or that timed out at the gateway, is in no counter
and in no histogram of vLLM. Those are often the slowest, so the engine's p99 is that of the survivors, and looks best
when things are worst.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from tailrace.engines.odometer import Odometer
from tailrace.engines.prometheus_text import parse_scrape
from tailrace.engines.window import EngineWindow, window_between
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord

_REFUSED_BY_ENGINE: Final = frozenset(
    {
        Reason.QUEUE_FULL,
        Reason.TOKEN_BACKLOG,
        Reason.EVICTED_BY_PRIORITY,
        Reason.ENGINE_LOADING,
        Reason.ENGINE_QUEUE_TIMEOUT,
    }
)
_VLLM: Final = 'vLLM counts a client that disconnects nowhere: `finished_reason="abort"` stays 0'
_ABOUT: Final[Mapping[str, str]] = {
    "vllm": _VLLM,
    "simulated": _VLLM,
    "sglang": "SGLang counts aborted requests without their reason",
    "triton": "Triton counts a stream whose client left as a success, queue timeouts as REJECTED, and what a "
    "full queue refused nowhere",
    "llamacpp": "llama.cpp counts tokens, and no requests",
}


class CountsBeside(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one stretch of time."""

    engine: dict[str, int | None]
    """`finished`, `aborted`, `rejected`, `failed`, `preemptions`; `None`: the engine has no such counter. With
    `finished.stop` and the like by reason."""
    gateway: dict[str, int]
    """`sent`, then every outcome, then `outcome/reason`: only requests that were sent to the engine."""
    why: list[str]
    """What explains the differences, one sentence each."""

    def view(self) -> dict[str, Any]:
        """For JSON."""
        return {"engine": self.engine, "gateway": self.gateway, "why": self.why}


def counts_beside(window: EngineWindow, *, engine: str = "") -> CountsBeside:
    """The counts of a window whose readings carry ours (`Reading.ours`)."""
    theirs = _theirs(window)
    ours = _ours(window.ours)
    return CountsBeside(engine=theirs, gateway=ours, why=[*window.notes, *_why(theirs, ours, engine)])


def _theirs(window: EngineWindow) -> dict[str, int | None]:
    out: dict[str, int | None] = {}
    for noun in ("finished", "aborted", "rejected", "failed", "preemptions"):
        total = window.total(noun)
        out[noun] = None if total is None else round(total)
        out.update(
            {f"{noun}.{reason}": round(count) for reason, count in window.counters.get(noun, {}).items() if reason}
        )
    if out["finished"] is not None and "finished.abort" in out:
        # What is aborted did not finish, whatever the counter's name says.
        out["finished"] -= out["finished.abort"] or 0
    return out


def _ours(counts: Mapping[str, int]) -> dict[str, int]:
    out = {"sent": 0, **dict.fromkeys((kind.value for kind in OutcomeKind), 0)}
    for key, count in counts.items():
        outcome = key.partition("/")[0]
        out["sent"] += count
        out[outcome] = out.get(outcome, 0) + count
        if "/" in key and count:
            out[key] = out.get(key, 0) + count
    return out


def _why(theirs: Mapping[str, int | None], ours: Mapping[str, int], engine: str) -> list[str]:
    why: list[str] = []
    about = _ABOUT.get(engine, "")
    lost = ours["cancelled"] + ours["timed_out"]
    aborted, finished = theirs["aborted"], theirs["finished"]
    if lost and (aborted or 0) < lost:
        counts = "has no counter of aborted requests" if aborted is None else f"counts {aborted} aborted"
        share = f"{lost} of {ours['sent']} requests ({lost / ours['sent']:.1%})"
        cut = f"{share} were cut here ({ours['cancelled']} cancelled, {ours['timed_out']} timed out)"
        if finished is None:
            blind = "nothing that it counts has them"
        elif finished >= ours["completed"] + lost:
            blind = "it seems to count them as finished, as short as they were cut: its percentiles look better by them"
        else:
            blind = (
                "none of its durations to the end has them, so its percentiles are those of the requests that survived"
            )
        why.append(f"survivor bias: the engine {counts}, and {cut}: {blind}")
        if about:
            why.append(about)
    refused = sum(
        ours.get(f"{kind}/{reason}", 0) for kind in ("rejected", "timed_out") for reason in _REFUSED_BY_ENGINE
    )
    told = (theirs["rejected"] or 0) + (theirs["failed"] or 0)
    if refused > told:
        counts = "has no counter of refused requests" if theirs["rejected"] is None else f"counts {told} refused"
        why.append(f"the engine {counts}, {refused} were refused as the gateway saw their answers")
        if engine == "triton" and about not in why:
            why.append(about)
    elif told > refused and ours["sent"]:
        why.append(f"the engine refused {told}, {refused} of them ours: others use it too")
    if finished is not None and finished > ours["completed"] + lost + ours["failed"]:
        more = finished - ours["completed"]
        why.append(f"the engine finished {more} more than completed here: others use it too, or the window cut between")
    if theirs["preemptions"]:
        why.append(
            f"{theirs['preemptions']} preemptions, counted when a request resumes: its wait is inside decode, not in "
            "the engine's queue time"
        )
    return why


# -- a table for a run that is over


class CountRow(msgspec.Struct, frozen=True):
    """One line of the table: what, as the engine has it, as the records have it."""

    what: str
    engine: str
    ours: str


def counts_table(before: str, after: str, records: Sequence[RequestRecord], *, engine: str = "") -> list[CountRow]:
    """A run's counts from two scrapes (Prometheus text, before and after it) and its records.

    Where a gateway made the records, `records` are those of requests that reached the engine.
    """
    odometer = Odometer()
    first = odometer.feed(parse_scrape(before), 0)
    window = window_between(first, odometer.feed(parse_scrape(after), 1))
    ours: dict[str, int] = {}
    for record in records:
        key = record.outcome.value + (f"/{record.reason.value}" if record.reason else "")
        ours[key] = ours.get(key, 0) + 1
    beside = counts_beside(msgspec.structs.replace(window, ours=ours), engine=engine)
    theirs, mine = beside.engine, beside.gateway

    def told(noun: str) -> str:
        return "no counter" if theirs[noun] is None else str(theirs[noun])

    refused = sum(count for key, count in mine.items() if key.startswith("rejected/"))
    rows = [
        CountRow("requests", "", str(mine["sent"])),
        CountRow("finished", told("finished"), str(mine["completed"])),
        CountRow("aborted (client left, cut by a budget)", told("aborted"), str(mine["cancelled"] + mine["timed_out"])),
        CountRow("refused", told("rejected"), str(refused)),
        CountRow("failed", told("failed"), str(mine["failed"])),
        CountRow("preemptions", told("preemptions"), _preempted(records)),
    ]
    for noun, values in (
        ("ttft", [record.ttft_upstream_ns or record.ttft_ns for record in records]),
        ("e2e", [record.e2e_ns for record in records]),
    ):
        delta = window.timings.get(noun)
        if delta is None:
            continue
        span = delta.quantile(0.99)
        said = "-" if span is None else f"{span.text(1e3, 'ms')} (n={delta.n:g})"
        done = [
            value
            for record, value in zip(records, values, strict=True)
            if value is not None and record.outcome is OutcomeKind.COMPLETED
        ]
        rows.append(CountRow(f"{noun} p99 of what completed", said, _nearest(done)))
        if noun == "e2e":
            # A request that was cut lived at least as long as it did: a lower bound, and still more than is told.
            rows.append(
                CountRow("e2e p99 of all requests", "not kept", f"at least {_nearest([r.e2e_ns for r in records])}")
            )
    rows.extend(CountRow("why", "", sentence) for sentence in beside.why)
    return rows


def counts_markdown(rows: Sequence[CountRow]) -> str:
    """The table for a page; the reasons as sentences below it."""
    lines = ["| | engine | Tailrace |", "| --- | --- | --- |"]
    lines += [f"| {row.what} | {row.engine} | {row.ours} |" for row in rows if row.what != "why"]
    why = [f"- {row.ours}" for row in rows if row.what == "why"]
    return "\n".join([*lines, "", *why]).rstrip() + "\n"


def _preempted(records: Sequence[RequestRecord]) -> str:
    known = [record.preemptions for record in records if record.preemptions is not None]
    return str(sum(known)) if known else "not told by request"


def _nearest(values: Sequence[int], q: float = 0.99) -> str:
    """The nearest-rank quantile, which is one of the values (ns), in ms with its n."""
    if not values:
        return "-"
    ranked = sorted(values)
    return f"{ranked[max(math.ceil(q * len(ranked)), 1) - 1] / 1e6:.0f} ms (n={len(ranked)})"
