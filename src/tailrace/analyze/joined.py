"""One request seen from two places: a load test's records joined with those of the gateway that it went through.

The load test sends its id as `x-request-id`; the gateway keeps it as `client_request_id` (or takes it as its own where
it is told to). Only durations of the two are subtracted, never their stamps: the client's time from its send minus the
gateway's time from the first byte that it read is what the network and the client's own reading took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tailrace.model.stage import STAGES
from tailrace.stats.quantiles import quantile, supported
from tailrace.store.table import RecordTable

__all__ = ["OUTSIDE", "Joined", "Owner", "Spread", "joined"]

OUTSIDE: Final = "network and client"
"""The part of a request's time that the gateway did not see."""
_TAIL: Final = 0.01
_LEAST_TAIL: Final = 5
_LEAST: Final = 20
"""Matched requests below which nobody is said to own a tail."""
_TOLERANCE_NS: Final = 2_000_000_000
"""Wall clocks decide only whether a record can be of the run at all, and those of two hosts differ."""
_LOOK: Final = "tailrace-look-"

Values = npt.NDArray[np.float64]


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """One duration over the matched requests that have it, milliseconds."""

    n: int
    p50: float | None = None
    p99: float | None = None
    """`None` where n does not support it."""
    max: float | None = None


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who has the slowest requests' time, beyond what the part takes at its median."""

    metric: str
    """`ttft` or `e2e`."""
    n: int
    """Requests in the tail: the slowest hundredth by the client's clock, at least five."""
    owner: str
    """`network and client`, or a stage of the gateway's split; of `ttft`, `gateway` as a whole."""
    share: float
    """Of all that the tail takes beyond the medians, 0 to 1."""
    excess_ms: dict[str, float]
    """Part -> its mean in the tail minus its median over all."""


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """Both views of the same requests. `columns` has one value a matched request, in the run's order."""

    matched: int
    in_run: int
    in_records: int
    spreads: dict[str, Spread]
    """`client_e2e`, `gateway_e2e`, `outside_e2e`, `client_ttft`, `gateway_ttft`, `outside_ttft`, `connect`, and the
    gateway's stages as `stage.queue`."""
    owners: list[Owner] = []
    only_in_run: dict[str, int] = {}
    """Why a request of the run has no record at the other side -> how many."""
    only_in_records: dict[str, int] = {}
    """Why a record is none of the run's -> how many."""
    differing: int = 0
    """Matched requests whose outcomes differ: completed at one side only."""
    repeated: int = 0
    """Records beyond the last one of an id: the client sent it again."""
    notes: list[str] = []

    def lines(self) -> list[str]:
        """The result in sentences, the most important one first."""
        out = [f"{self.matched:,} of {self.in_run:,} requests found among {self.in_records:,} records"]
        for name, words in (("ttft", "time to first token"), ("e2e", "end to end")):
            found = [
                (who, spread)
                for side, who in (("client", "client"), ("gateway", "gateway"), ("outside", OUTSIDE))
                if (spread := self.spreads.get(f"{side}_{name}")) is not None
            ]
            if len(found) == 3:
                said = [f"{who} {_typical(one)}" for who, one in found]
                out.append(f"{words} (n={found[-1][1].n:,}): {'; '.join(said)}")
        connect = self.spreads.get("connect")
        if connect is not None and connect.n:
            middle = "" if connect.p50 is None else f"{_ms(connect.p50)} at the median, "
            out.append(f"connecting: {middle}{_ms(connect.max)} at most (n={connect.n:,})")
        for owner in self.owners:
            parts = ", ".join(f"{part} {excess:+,.1f} ms" for part, excess in list(owner.excess_ms.items())[:4])
            out.append(
                f"the tail by {'TTFT' if owner.metric == 'ttft' else 'E2E'} ({owner.n} requests) is owned by "
                f"{owner.owner}, {owner.share:.0%} of what they take beyond the medians ({parts})"
            )
        for side, reasons in (("the run", self.only_in_run), ("the records", self.only_in_records)):
            if reasons:
                said = [f"{count:,} {why}" for why, count in reasons.items()]
                out.append(f"only in {side}: {'; '.join(said)}")
        if self.differing:
            out.append(f"{self.differing:,} ended well at one side only")
        if self.repeated:
            out.append(f"{self.repeated:,} records are of requests that the client sent again; the last one counts")
        return [*out, *self.notes]


def _typical(one: Spread) -> str:
    """The quantiles that n supports; with none of them the greatest value."""
    known = [
        f"{_ms(value)} at {name}" for name, value in (("the median", one.p50), ("p99", one.p99)) if value is not None
    ]
    return ", ".join(known) or f"{_ms(one.max)} at most"


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.1f} ms"


def joined(run: RecordTable, records: RecordTable, *, dropped: float = 0.0) -> Joined:
    """Join the records of a run with those of a gateway. `dropped`: the share of its records that the gateway lost."""
    place_of, repeated = _places(records, set(run.column("request_id").tolist()))
    theirs = np.array([place_of.get(one, -1) for one in run.column("request_id").tolist()], np.int64)
    found = theirs >= 0
    mine, other = run.where(found), records.where(theirs[found])
    spans = _spans(mine, other)
    spreads = {name: _spread(values) for name, values in spans.items()}
    ended = mine.column("outcome").astype(str) == "completed", other.column("outcome").astype(str) == "completed"
    unknown = records.where(np.setdiff1d(np.arange(len(records)), _all_places(records, run)))
    return Joined(
        matched=int(found.sum()),
        in_run=len(run),
        in_records=len(records),
        spreads={name: spread for name, spread in spreads.items() if spread.n},
        owners=[owner for metric in ("ttft", "e2e") if (owner := _owner(metric, spans)) is not None],
        only_in_run=_why_only_in_run(run.where(~found), records, matched=int(found.sum()), dropped=dropped),
        only_in_records=_why_only_in_records(unknown, run),
        differing=int((ended[0] != ended[1]).sum()),
        repeated=repeated,
        notes=_notes(spans),
    )


# -- the same request


def _ids(records: RecordTable) -> list[tuple[str, str]]:
    pairs = zip(records.column("client_request_id").tolist(), records.column("request_id").tolist(), strict=True)
    return list(pairs)


def _places(records: RecordTable, wanted: set[str]) -> tuple[dict[str, int], int]:
    """(id of the run -> row of its last record, records that an id has beyond one)."""
    out: dict[str, int] = {}
    starts = records.column("start_unix_ns")
    repeated = 0
    for row, (theirs, own) in enumerate(_ids(records)):
        name = theirs if theirs in wanted else own
        if name not in wanted:
            continue
        before = out.get(name)
        if before is not None:
            repeated += 1
            if starts[before] > starts[row]:
                continue
        out[name] = row
    return out, repeated


def _all_places(records: RecordTable, run: RecordTable) -> list[int]:
    wanted = set(run.column("request_id").tolist())
    return [row for row, (theirs, own) in enumerate(_ids(records)) if theirs in wanted or own in wanted]


# -- durations


def _spans(mine: RecordTable, other: RecordTable) -> dict[str, Values]:
    """Every duration (ms), NaN where one side does not have it."""
    out: dict[str, Values] = {}
    for name in ("e2e", "ttft"):
        out[f"client_{name}"], out[f"gateway_{name}"] = mine.ms(name), other.ms(name)
        out[f"outside_{name}"] = out[f"client_{name}"] - out[f"gateway_{name}"]
    out["connect"] = mine.ms("connect")
    for stage in STAGES:
        out[f"stage.{stage}"] = other.ms(stage)
    return out


def _spread(values: Values) -> Spread:
    known = values[~np.isnan(values)]
    n = int(known.size)
    if not n:
        return Spread(n=0)
    p99 = quantile(known, 0.99) if supported(0.99, n) else None
    return Spread(n=n, p50=quantile(known, 0.5), p99=p99, max=float(known.max()))


def _owner(metric: str, spans: Mapping[str, Values]) -> Owner | None:
    whole, outside = spans[f"client_{metric}"], spans[f"outside_{metric}"]
    known = ~np.isnan(whole) & ~np.isnan(outside)
    n = int(known.sum())
    if n < _LEAST:
        return None
    parts: dict[str, Values] = {OUTSIDE: outside[known]}
    if metric == "ttft":
        parts["gateway"] = spans["gateway_ttft"][known]
    else:
        parts |= {
            name.removeprefix("stage."): np.nan_to_num(values[known])
            for name, values in spans.items()
            if name.startswith("stage.")
        }
    tail = np.argsort(whole[known], kind="stable")[-max(_LEAST_TAIL, round(n * _TAIL)) :]
    excess = {name: float(values[tail].mean() - np.median(values)) for name, values in parts.items()}
    total = sum(max(value, 0.0) for value in excess.values())
    if total <= 0:
        return None
    ranked = dict(sorted(((name, value) for name, value in excess.items() if value), key=lambda one: -one[1]))
    owner = next(iter(ranked))
    return Owner(metric=metric, n=len(tail), owner=owner, share=ranked[owner] / total, excess_ms=ranked)


def _notes(spans: Mapping[str, Values]) -> list[str]:
    outside = spans["outside_e2e"]
    with np.errstate(invalid="ignore"):
        early = int((outside < 0).sum())
    if not early:
        return []
    # The gateway's time ends when its last byte is drained, which a client that has all it needs does not wait for.
    return [f"in {early:,} requests the gateway was busy longer than the client: it was still writing the end"]


# -- what has no other side


def _why_only_in_run(lost: RecordTable, records: RecordTable, *, matched: int, dropped: float) -> dict[str, int]:
    if not len(lost):
        return {}
    if not len(records):
        return {"no records at all": len(lost)}
    starts = records.column("start_unix_ns")
    out: dict[str, int] = {}
    for row in range(len(lost)):
        why = _why(lost, row, starts, matched=matched, dropped=dropped)
        out[why] = out.get(why, 0) + 1
    return dict(sorted(out.items(), key=lambda one: -one[1]))


def _why(lost: RecordTable, row: int, starts: npt.NDArray[Any], *, matched: int, dropped: float) -> str:
    start = int(lost.column("start_unix_ns")[row])
    if lost.column("reason")[row] == "engine_unreachable":
        return "never reached it: no connection"
    if start < int(starts.min()) - _TOLERANCE_NS:
        return "before its oldest record: they were pruned, or more records are needed than were fetched"
    if start > int(starts.max()) + _TOLERANCE_NS:
        return "after its newest record: not written yet, or of another gateway"
    if matched and dropped > 0:
        return f"dropped: it lost {dropped:.1%} of its records"
    if matched:
        return "no record, and none is known to be dropped: another gateway or worker served them"
    return "other ids: no record of that time carries one of the run's (x-request-id does not reach it)"


def _why_only_in_records(unknown: RecordTable, run: RecordTable) -> dict[str, int]:
    if not len(unknown) or not len(run):
        return {"records, of no request of the run": len(unknown)} if len(unknown) else {}
    begin = int(run.column("start_unix_ns").min()) - _TOLERANCE_NS
    end = int((run.column("start_unix_ns") + run.column("e2e_ns")).max()) + _TOLERANCE_NS
    warm_up = {f"{name}-w" for name in _marks(run.column("request_id").tolist())}
    out: dict[str, int] = {}
    starts = unknown.column("start_unix_ns").tolist()
    for (theirs, own), start in zip(_ids(unknown), starts, strict=True):
        name = theirs or own
        if name.startswith(_LOOK):
            why = "of the look before the run"
        elif name.partition("-")[0] + "-w" in warm_up and name.partition("-")[2].startswith("w"):
            why = "of the warm-up"
        elif not begin <= start <= end:
            why = "of another time"
        elif not theirs:
            why = "without an id of a client: other traffic"
        else:
            why = "with other ids: other traffic, or another run"
        out[why] = out.get(why, 0) + 1
    return dict(sorted(out.items(), key=lambda one: -one[1]))


def _marks(names: Sequence[str]) -> set[str]:
    """What the ids of a run begin with."""
    return {name.partition("-")[0] for name in names if "-" in name}
