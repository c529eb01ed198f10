"""What the ladder asks of admission: low priority waits or is refused, nobody else queues on the last rung."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.govern.admission import Admission
from tailrace.govern.decision import DecisionKind, refused
from tailrace.govern.lane import LaneMatch, LanePolicy, RequestFacts
from tailrace.govern.restraint import UNRESTRAINED, Restraint
from tailrace.govern.rungs import Effects, Rung
from tailrace.model.outcome import Reason
from tailrace.model.thresholds import Budgets, S

HOLD = Effects(rungs=(Rung.LOW_WAITS,), low_waits=True)
REFUSE = Effects(rungs=(Rung.REFUSE,), refuse=True)
BUDGETS = Budgets(queue_ns=60 * S)


def lanes() -> Admission:
    return Admission(
        [
            LanePolicy(name="low", match=LaneMatch(tenant="low"), running=1, priority=10, budgets=BUDGETS),
            LanePolicy(name="chat", match=LaneMatch(tenant="chat"), running=1, budgets=BUDGETS),
            LanePolicy(name="top", match=LaneMatch(tenant="top"), running=1, priority=-10, budgets=BUDGETS),
        ]
    )


def ask(admission: Admission, name: str, now: int = 0) -> DecisionKind:
    return admission.arrive(RequestFacts(request_id=name, tenant=name.rstrip("0123456789")), now).kind


def test_low_priority_begins_only_when_nobody_else_waits() -> None:
    admission = lanes()
    admission.restraint = Restraint(HOLD, 0)
    assert ask(admission, "low1") is DecisionKind.ADMIT  # nobody waits
    assert [ask(admission, name) for name in ("chat1", "chat2", "low2")] == [
        DecisionKind.ADMIT, DecisionKind.WAIT, DecisionKind.WAIT,
    ]  # fmt: skip
    assert admission.finish("low1", S) == []
    # Its lane is empty, and chat2 waits for another's place.
    assert ask(admission, "low3", S) is DecisionKind.WAIT
    # Whoever waits no longer lets it go: here it is chat1's end, in another lane.
    assert admission.finish("chat1", 2 * S) == ["chat2", "low2"]


def test_high_priority_is_never_held() -> None:
    admission = lanes()
    admission.restraint = Restraint(HOLD, 0)
    for name in ("chat1", "chat2"):
        ask(admission, name)
    assert ask(admission, "top1") is DecisionKind.ADMIT


def test_on_the_last_rung_low_is_refused_and_nobody_else_waits() -> None:
    admission = lanes()
    assert [ask(admission, name) for name in ("chat1", "chat2")] == [DecisionKind.ADMIT, DecisionKind.WAIT]
    admission.restraint = Restraint(REFUSE, 20 * S)
    for name in ("low1", "chat3"):
        decision = admission.arrive(RequestFacts(request_id=name, tenant=name[:-1]), 13 * S)
        assert (decision.kind, decision.reason, decision.http_status) == (DecisionKind.REFUSE, Reason.DEGRADED, 429)
        assert decision.retry_after_s is not None
        assert decision.retry_after_s >= 7
    assert ask(admission, "top1", 13 * S) is DecisionKind.ADMIT
    # Who waited before waits on, and is served.
    assert admission.finish("chat1", 14 * S) == ["chat2"]
    admission.restraint = UNRESTRAINED
    assert ask(admission, "low2", 14 * S) is DecisionKind.ADMIT


def test_retry_after_is_never_in_the_past() -> None:
    plain = refused("chat", Reason.DEGRADED, 0, None, status=429)
    assert Restraint(REFUSE, 0).told(plain, 50 * S).retry_after_s == 1
    assert Restraint(REFUSE, 10 * S + 1).told(plain, 8 * S).retry_after_s == 3


@given(st.lists(st.tuples(st.sampled_from(["low", "chat", "top"]), st.sampled_from(["ask", "end", "hold", "free"]))))
def test_low_priority_never_begins_before_one_that_waits(events: list[tuple[str, str]]) -> None:
    admission = lanes()
    number, now = 0, 0
    running: list[str] = []
    waiting: list[str] = []

    def begun(names: list[str]) -> None:
        for name in names:
            waiting.remove(name)
            running.append(name)
            if admission.restraint.effects.low_waits and name.startswith("low"):
                assert not any(not other.startswith("low") for other in waiting)

    for lane, event in events:
        now += S
        if event == "hold":
            admission.restraint = Restraint(HOLD, 0)
        elif event == "free":
            admission.restraint = UNRESTRAINED
            begun(admission.settle(now))
        elif event == "ask":
            number += 1
            name = f"{lane}{number}"
            kind = ask(admission, name, now)
            if kind is not DecisionKind.REFUSE:
                waiting.append(name)
            if kind is DecisionKind.ADMIT:
                begun([name])
        elif running:
            begun(admission.finish(running.pop(0), now))
        for name in admission.expire(now):
            waiting.remove(name)
    # Held or not, everybody is served in the end.
    while running:
        now += S
        begun(admission.finish(running.pop(0), now))
        for name in admission.expire(now):
            waiting.remove(name)
    assert waiting == []
