"""The keeper of shared limits: which process holds how many places of which lane.

Held places never exceed a limit (after a limit was lowered: they are called back until they do not), a process that is
gone holds none, and whoever waits is served in the order of arrival over all processes, aged by lane priority.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from tailrace.govern.lane import LanePolicy
from tailrace.govern.shared_state import Order, Report
from tailrace.govern.sharing import STRICT_AGEING_NS

CALM_NS: Final = 1_000_000_000
"""How long nobody may have lacked anything before scarce places are spread again."""
ANSWER_NS: Final = 100_000_000
"""How long a process may leave unsaid what it has to spare. One that is stuck keeps its places, but holds up no
refusal for longer."""
PLENTY: Final = 4
"""Spare places for each process from which they are spread at once: then a burst in one process costs one call."""

Orders = list[tuple[str, Order]]
"""Process -> what it is told."""


class _Part:
    """What one process has of one lane."""

    __slots__ = (
        "called_in",
        "held_queued",
        "held_running",
        "need_queued",
        "need_running",
        "oldest",
        "orders",
        "report",
        "settled",
        "under_way",
    )

    def __init__(self) -> None:
        self.held_running = 0
        self.held_queued = 0
        self.need_running = 0
        self.need_queued = 0
        self.oldest = 0
        self.report = 0
        self.settled = 0
        self.orders = 0
        self.called_in = 0
        """The order that called its idle places back; 0 while it may keep them."""
        self.under_way: deque[tuple[int, int, int]] = deque()
        """Order number, places to run, places in the queue: granted, not yet heard."""

    def lacks_running(self) -> int:
        return max(0, self.need_running - sum(grant[1] for grant in self.under_way))

    def lacks_queued(self) -> int:
        # A place to run takes one out of the queue, which passes its place on to the first that has none.
        return max(0, self.need_queued - sum(grant[1] + grant[2] for grant in self.under_way))


class _Lane:
    """One lane's limits and parts."""

    __slots__ = ("group", "parts", "policy", "queued", "running")

    def __init__(self, policy: LanePolicy) -> None:
        self.policy = policy
        self.running = policy.running
        self.queued = policy.queued
        self.parts: dict[str, _Part] = {}

    @property
    def held_running(self) -> int:
        return sum(part.held_running for part in self.parts.values())

    @property
    def spare_running(self) -> int:
        return self.running - self.held_running

    @property
    def spare_queued(self) -> int:
        return self.queued - sum(part.held_queued for part in self.parts.values())


class _Group:
    """Lanes that are loose or tight together: one lane, or all of them where a total binds them."""

    def __init__(self) -> None:
        self.tight = False
        self.since = 0
        """When it became tight."""
        self.lacked_at = 0
        """When somebody lacked something last."""
        self.awaited: set[tuple[str, str]] = set()
        """(process, lane) that have not yet said what they have to spare."""


class LeaseBook:
    """All leases of one gateway. Every method returns the orders that follow; they must be delivered in order."""

    def __init__(
        self,
        policies: Sequence[LanePolicy],
        *,
        total_running: int | None = None,
        processes: int,
        ageing_ns: int = STRICT_AGEING_NS,
    ) -> None:
        """`processes`: among how many the places are spread while nobody lacks any."""
        self._ageing = ageing_ns
        self._processes = processes
        self._total = total_running
        self._members: list[str] = []
        self._lanes: dict[str, _Lane] = {}
        self._groups: dict[str, _Group] = {}
        self._out: Orders = []
        self._set_lanes(policies)

    # -- events

    def join(self, process: str) -> Orders:
        """A process begins, with nothing; it gets its part of what is spare."""
        self._members.append(process)
        for name, lane in self._lanes.items():
            part = lane.parts[process] = _Part()
            if self._group(name).tight:
                part.called_in = self._order(process, name, tight=True)
            else:
                running = min(self._spare(lane), lane.running // (self._processes * self._rivals()))
                queued = min(max(0, lane.spare_queued), lane.queued // self._processes)
                self._order(process, name, running=running, queued=queued)
        return self._flush()

    def leave(self, process: str, now: int) -> Orders:
        """A process is gone, however it went: all that it held is free."""
        if process in self._members:
            self._members.remove(process)
            for lane in self._lanes.values():
                lane.parts.pop(process, None)
            for group in self._groups.values():
                group.awaited = {pair for pair in group.awaited if pair[0] != process}
            self._settle_all(now)
        return self._flush()

    def report(self, process: str, report: Report, now: int) -> Orders:
        """A process says what it gives back and what it lacks."""
        lane = self._lanes.get(report.lane)
        part = None if lane is None else lane.parts.get(process)
        if part is None:
            return []
        part.held_running -= report.given_running
        part.held_queued -= report.given_queued
        part.need_running, part.need_queued = report.need_running, report.need_queued
        part.oldest, part.report = report.oldest_ns, report.number
        while part.under_way and part.under_way[0][0] <= report.heard:
            part.under_way.popleft()
        if part.called_in and report.heard >= part.called_in:
            self._group(report.lane).awaited.discard((process, report.lane))
        self._settle(report.lane, now)
        return self._flush()

    def replace(self, policies: Sequence[LanePolicy], total_running: int | None, now: int) -> Orders:
        """Change the limits. What is held above a lowered one is called back, and comes when its requests end."""
        self._total = total_running
        self._set_lanes(policies)
        for name, lane in self._lanes.items():
            for process in self._members:
                part = lane.parts.setdefault(process, _Part())
                # It may have been loose under another rule; after this order everybody knows where it stands.
                part.called_in = self._order(process, name, tight=True)
            group = self._group(name)
            group.tight, group.since, group.lacked_at = True, now, now
            group.awaited |= {(process, name) for process in self._members}
        return self._flush()

    def sweep(self, now: int) -> Orders:
        """Time has passed: refuse what a stuck process holds up, spread what nobody lacks."""
        for name in self._first_of_groups():
            group = self._group(name)
            if group.awaited and now - group.since > ANSWER_NS:
                group.awaited.clear()
            if group.tight:
                self._settle(name, now)
        return self._flush()

    # -- views

    def held(self, lane: str) -> tuple[int, int]:
        """Places to run and places in the queue that are out."""
        known = self._lanes[lane]
        return known.held_running, known.queued - known.spare_queued

    def held_by(self, process: str) -> dict[str, tuple[int, int]]:
        """Lane -> places to run and in the queue that `process` holds."""
        return {
            name: (part.held_running, part.held_queued)
            for name, lane in self._lanes.items()
            if (part := lane.parts.get(process)) is not None
        }

    def tight(self, lane: str) -> bool:
        """Whether places of this lane are scarce."""
        return self._group(lane).tight

    # -- lanes and groups

    def _set_lanes(self, policies: Sequence[LanePolicy]) -> None:
        for policy in policies:
            known = self._lanes.setdefault(policy.name, _Lane(policy))
            known.policy, known.running, known.queued = policy, policy.running, policy.queued
        names = {policy.name for policy in policies}
        for name, lane in list(self._lanes.items()):
            if name not in names:
                # Its requests end in peace, and count in the total until then.
                lane.running = lane.queued = 0
        self._groups = {}

    def _group(self, lane: str) -> _Group:
        return self._groups.setdefault("" if self._total is not None else lane, _Group())

    def _lanes_with(self, lane: str) -> list[str]:
        return list(self._lanes) if self._total is not None else [lane]

    def _rivals(self) -> int:
        """How many lanes draw on the same places."""
        return 1 if self._total is None else max(1, len(self._lanes))

    def _first_of_groups(self) -> list[str]:
        return list(self._lanes)[:1] if self._total is not None else list(self._lanes)

    def _spare(self, lane: _Lane) -> int:
        """Places to run that may be granted."""
        spare = lane.spare_running
        if self._total is not None:
            spare = min(spare, self._total - sum(other.held_running for other in self._lanes.values()))
        return max(0, spare)

    # -- giving

    def _settle_all(self, now: int) -> None:
        for name in self._first_of_groups():
            self._settle(name, now)

    def _settle(self, lane: str, now: int) -> None:
        """Give what is spare to whoever lacks it; call back, refuse or spread, as that leaves it."""
        names = self._lanes_with(lane)
        group = self._group(lane)
        grants: dict[tuple[str, str], list[int]] = {}
        self._share_out(names, grants, 0, _Part.lacks_running, self._spare, now)
        self._share_out(
            names,
            grants,
            1,
            _Part.lacks_queued,
            lambda one: max(0, one.spare_queued),
            now,
        )
        for (process, name), (running, queued) in grants.items():
            self._order(process, name, running=running, queued=queued, granted=True)
        parts = [(process, name, part) for name in names for process, part in self._lanes[name].parts.items()]
        lacking = any(part.lacks_running() or part.lacks_queued() for _, _, part in parts)
        over = any(self._lanes[name].spare_running < 0 or self._lanes[name].spare_queued < 0 for name in names)
        if self._total is not None:
            over |= sum(one.held_running for one in self._lanes.values()) > self._total
        if lacking or over:
            group.lacked_at = now
            if not group.tight:
                group.tight, group.since = True, now
                for process, name, part in parts:
                    part.called_in = self._order(process, name, tight=True)
                    group.awaited.add((process, name))
        if group.tight and not group.awaited:
            for process, name, part in parts:
                if part.lacks_queued() and part.settled < part.report:
                    part.settled = part.report
                    refused = part.lacks_queued()
                    part.need_running -= refused
                    part.need_queued -= refused
                    self._order(process, name, settled=part.report)
            if not lacking and not over:
                self._relax(names, group, now)

    def _share_out(
        self,
        names: list[str],
        grants: dict[tuple[str, str], list[int]],
        kind: int,
        lacks: Callable[[_Part], int],
        spare: Callable[[_Lane], int],
        now: int,
    ) -> None:
        """One place each, longest waiting first, round after round: of a queue only the head's age is known."""
        while True:
            turn = sorted(
                (self._rank(name, part, now), process, name)
                for name in names
                if spare(self._lanes[name]) > 0
                for process, part in self._lanes[name].parts.items()
                if lacks(part) > 0
            )
            given = False
            for _, process, name in turn:
                lane = self._lanes[name]
                if spare(lane) <= 0:
                    continue
                part = lane.parts[process]
                grant = grants.setdefault((process, name), [0, 0])
                grant[kind] += 1
                given = True
                # Counted at once, under the number that the order will have.
                if kind == 0:
                    part.held_running += 1
                else:
                    part.held_queued += 1
                if part.under_way and part.under_way[-1][0] == part.orders + 1:
                    part.under_way.pop()
                part.under_way.append((part.orders + 1, grant[0], grant[1]))
            if not given:
                return

    def _rank(self, name: str, part: _Part, now: int) -> float:
        return self._lanes[name].policy.priority - (now - (part.oldest or now)) / self._ageing

    def _relax(self, names: list[str], group: _Group, now: int) -> None:
        members = max(1, len(self._members))
        calm = now - group.lacked_at >= CALM_NS
        plenty = all(self._spare(self._lanes[name]) >= PLENTY * members for name in names)
        if not calm and not plenty:
            return
        group.tight = False
        for name in names:
            lane = self._lanes[name]
            if not lane.running and not lane.held_running and lane.spare_queued >= 0:
                del self._lanes[name]
                continue
            # What is held is in use; so equal parts of the rest give everybody the same headroom.
            running = self._spare(lane) // (members * self._rivals())
            queued = max(0, lane.spare_queued) // members
            for process, part in lane.parts.items():
                part.called_in = 0
                self._order(process, name, running=running, queued=queued)

    def _order(
        self,
        process: str,
        name: str,
        *,
        running: int = 0,
        queued: int = 0,
        tight: bool | None = None,
        settled: int = 0,
        granted: bool = False,
    ) -> int:
        """`granted`: the places are counted already."""
        lane = self._lanes[name]
        part = lane.parts[process]
        part.orders += 1
        if not granted and (running or queued):
            part.held_running += running
            part.held_queued += queued
            part.under_way.append((part.orders, running, queued))
        order = Order(
            lane=name,
            number=part.orders,
            running=running,
            queued=queued,
            tight=self._group(name).tight if tight is None else tight,
            settled=settled,
            elsewhere=sum(max(0, other.need_running) for who, other in lane.parts.items() if who != process),
        )
        self._out.append((process, order))
        return part.orders

    def _flush(self) -> Orders:
        out, self._out = self._out, []
        return out
