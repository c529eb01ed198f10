"""The desk of the lanes: whoever is told that it may go may end at once, and what it leaves goes to the next."""

from __future__ import annotations

from tailrace.gateway.lanes import LaneDesk
from tailrace.govern.admission import Decision, DecisionKind
from tailrace.govern.lane import LanePolicy, RequestFacts
from tailrace.model.thresholds import S

WAITING = 2_000


class Ends:
    """Ends as soon as it may go: no engine takes requests."""

    def __init__(self, desk: LaneDesk, request_id: str, ended: list[str]) -> None:
        self.desk, self.request_id, self.ended = desk, request_id, ended

    def lane_admitted(self, now: int) -> None:
        self.ended.append(self.request_id)
        self.desk.finish(self.request_id, now, completed=False)

    def lane_refused(self, decision: Decision, now: int) -> None:
        raise AssertionError

    def lane_timed_out(self, now: int) -> None:
        raise AssertionError


def test_a_whole_queue_may_end_in_one_go():
    desk = LaneDesk([LanePolicy(running=1, queued=WAITING)])
    ended: list[str] = []
    names = [f"r{number}" for number in range(WAITING)]
    for now, name in enumerate(["first", *names], S):
        decision = desk.arrive(Ends(desk, name, ended), RequestFacts(request_id=name), now)
        assert decision.kind is (DecisionKind.ADMIT if name == "first" else DecisionKind.WAIT)
    desk.finish("first", 2 * S)
    assert ended == names
    lane = desk.snapshot(2 * S)["default"]
    assert (lane["running"], lane["queued"]) == (0, 0)
