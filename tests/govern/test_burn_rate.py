"""When an objective is in danger: the workbook's numbers, blips, slow days, hysteresis, rules that cannot fire."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from tailrace.govern.attainment import Attainment
from tailrace.govern.burn_rate import DEFAULT_BURN, AlarmPolicy, Alarms, Alert, BurnRule, State, impossible, window_name
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import MS, Objectives, S
from tailrace.stats.tests import binomial_tail

OBJECTIVES = Objectives(bounds={"ttft": {0.99: 500 * MS}})
BOUNDS = {"chat": {"ttft_p99": 500 * MS}}
PAGES = AlarmPolicy(quantiles=False, burn=DEFAULT_BURN[:1])
"""One rule: in a process that is an hour old, the longer windows of the others are no longer than this one."""
MINUTE = 60 * S


class Traffic:
    """A lane whose requests end at a steady rate, judged every 15 s as the gateway does it."""

    def __init__(self, policy: AlarmPolicy, seed: int = 1) -> None:
        self.account, self.alarms = Attainment(OBJECTIVES), Alarms(policy)
        self.now, self.number = 10**15, 0
        self.rng = np.random.default_rng(seed)
        self.changes: list[tuple[int, Alert]] = []

    def run(self, minutes: float, *, rate: float, slow: float) -> None:
        for _ in range(round(minutes * 4)):
            self.now += 15 * S
            for _ in range(int(self.rng.poisson(15 * rate))):
                self.number += 1
                self.account.heard(self._row(slow=bool(self.rng.random() < slow)), self.now)
            missed = {"chat": self.account.view(self.now, self.alarms.policy.windows())["missed"]}
            self.changes += [(self.now, one) for one in self.alarms.judge(missed, BOUNDS, self.now)]

    def _row(self, *, slow: bool) -> RequestRecord:
        return RequestRecord(
            request_id=f"r{self.number}", start_unix_ns=0, e2e_ns=S, outcome=OutcomeKind.COMPLETED, stream=True,
            ttft_ns=(900 if slow else 90) * MS,
        )  # fmt: skip

    @property
    def said(self) -> list[tuple[State, str]]:
        return [(one.state, one.rule) for _, one in self.changes]


def test_an_outage_pages_within_minutes_and_is_over_soon_after_its_end():
    traffic = Traffic(PAGES)
    traffic.run(60, rate=5, slow=0.001)
    assert traffic.said == []
    began = traffic.now
    traffic.run(20, rate=5, slow=0.5)
    at, first = traffic.changes[0]
    assert (first.state, first.severity, first.rule) == (State.FIRING, "page", "burn 1h/5m > 14.4")
    # 14.4 % of an hour's requests must have missed: at one in two that takes 17 minutes.
    assert 15 * MINUTE < at - began <= 19 * MINUTE
    assert first.burn_rate > 14.4
    assert f"{first.missed} of {first.requests} requests" in first.text
    ended = traffic.now
    traffic.run(30, rate=5, slow=0.001)
    over = [(at, one) for at, one in traffic.changes if one.state is State.RESOLVED and one.rule == first.rule]
    # The long window still burns; the short one forgets in 5 minutes, and 5 more of calm are asked for.
    assert len(over) == 1
    assert 5 * MINUTE <= over[0][0] - ended <= 12 * MINUTE
    assert over[0][1].began_ns == at


def test_a_blip_pages_nobody():
    traffic = Traffic(PAGES)
    traffic.run(90, rate=5, slow=0.0)
    traffic.run(2, rate=5, slow=1.0)  # 2 of 60 minutes: a burn of 3.3 in the long window
    traffic.run(60, rate=5, slow=0.0)
    assert traffic.said == []


def test_a_steady_twofold_burn_is_a_ticket_after_hours():
    traffic = Traffic(AlarmPolicy(quantiles=False, burn=DEFAULT_BURN[2:]))
    traffic.run(60 * 24, rate=0.2, slow=0.03)
    assert [(one.state, one.severity) for _, one in traffic.changes] == [(State.FIRING, "ticket")]


def test_few_requests_are_no_alarm():
    traffic = Traffic(PAGES)
    traffic.run(60, rate=5 / 3600, slow=1.0)  # every one of five
    assert traffic.said == []
    assert traffic.account.view(traffic.now)["burn_rate"]["ttft_p99"]["1h"] == pytest.approx(100.0)


def test_an_alarm_does_not_flap():
    traffic = Traffic(PAGES)
    traffic.run(30, rate=5, slow=0.5)
    for _ in range(10):
        traffic.run(2, rate=5, slow=0.0)
        traffic.run(4, rate=5, slow=0.4)
    fired = [one for _, one in traffic.changes if one.rule == "burn 1h/5m > 14.4"]
    assert [one.state for one in fired] == [State.FIRING]
    assert [one.rule for one in traffic.alarms.firing].count("burn 1h/5m > 14.4") == 1


def test_a_quantile_alarm_is_an_exact_test_of_counts():
    traffic = Traffic(AlarmPolicy(burn=()))
    traffic.run(24 * 60, rate=5, slow=0.01)  # exactly what the objective allows, for a day
    assert traffic.said == []
    traffic.run(10, rate=5, slow=0.06)
    assert traffic.said[0] == (State.FIRING, "quantile 5m")
    assert traffic.changes[0][1].severity == "notice"


def test_a_p999_needs_more_requests_than_a_p99():
    alarms = Alarms(AlarmPolicy(burn=()))
    bounds = {"chat": {"ttft_p99": 1, "ttft_p999": 1}}
    windows = {"5m": {"requests": 2000, "missed": 12}}
    missed = {"chat": {"ttft_p99": windows, "ttft_p999": windows}}
    fired = alarms.judge(missed, bounds, 0)
    # 12 of 2,000: fine for a p99 (20 allowed), six times too many for a p99.9 (2 allowed).
    assert [one.objective for one in fired] == ["ttft_p999"]


def test_a_lane_that_is_gone_ends_its_alarm():
    traffic = Traffic(PAGES)
    traffic.run(40, rate=5, slow=0.9)
    firing = {one.key for one in traffic.alarms.firing}
    assert firing
    ended = traffic.alarms.judge({}, {}, traffic.now)
    assert {one.key for one in ended} == firing
    assert {one.state for one in ended} == {State.RESOLVED}
    assert traffic.alarms.firing == []


def test_a_request_that_hangs_is_counted_while_it_hangs():
    account = Attainment(OBJECTIVES)
    account.passed("r1", "ttft", 400 * MS, S)
    assert account.view(S)["missed"]["ttft_p99"]["5m"] == {"requests": 0, "missed": 0}
    for _ in range(3):
        account.passed("r1", "ttft", 600 * MS, S)
    assert account.view(S)["missed"]["ttft_p99"]["5m"] == {"requests": 1, "missed": 1}
    slow = RequestRecord(
        request_id="r1", start_unix_ns=0, e2e_ns=9 * S, outcome=OutcomeKind.COMPLETED, stream=True, ttft_ns=8 * S
    )
    account.heard(slow, 2 * S)
    assert account.view(2 * S)["missed"]["ttft_p99"]["5m"] == {"requests": 1, "missed": 1}, "counted once"
    account.passed("r2", "ttft", 600 * MS, S)
    account.forget({"r3"})
    assert not account._early


def test_rules_that_can_never_fire_are_refused():
    rule = BurnRule(severity="page", long_ns=3600 * S, short_ns=300 * S, rate=14.4)
    assert impossible([rule], {"ttft_p99": 1}) == ""
    assert "14.4 can never fire for ttft_p90" in impossible([rule], {"ttft_p99": 1, "ttft_p90": 1})
    assert "burns at 10" in impossible([rule], {"ttft_p90": 1})
    upside_down = BurnRule(severity="page", long_ns=300 * S, short_ns=3600 * S, rate=2)
    assert "do not fit" in impossible([upside_down], {"ttft_p99": 1})
    # Built-in rules that a p50 cannot reach are no rules for it.
    alarms = Alarms(AlarmPolicy(quantiles=False))
    everything = {name: {"requests": 1000, "missed": 1000} for name in AlarmPolicy().windows()}
    fired = alarms.judge({"chat": {"ttft_p50": everything}}, {"chat": {"ttft_p50": 1}}, 0)
    assert [one.rule for one in fired] == ["burn 3d/6h > 1"]


def test_the_tail_of_the_binomial_is_exact():
    rng = np.random.default_rng(3)
    for _ in range(300):
        n, share = int(rng.integers(1, 20_000)), float(rng.choice([0.001, 0.01, 0.05, 0.1, 0.5]))
        count = min(n, int(n * share + rng.integers(0, 60)))
        expected = 1.0 if count <= n * share else float(binom.sf(count - 1, n, share))
        assert binomial_tail(count, n, share) == pytest.approx(expected, rel=1e-6, abs=1e-300)


@pytest.mark.parametrize(
    ("ns", "name"), [(300 * S, "5m"), (6 * 3600 * S, "6h"), (3 * 86400 * S, "3d"), (90 * S, "90s")]
)
def test_windows_have_names(ns, name):
    assert window_name(ns) == name


def test_what_fires_while_nobody_asks_says_so():
    alarms = Alarms(AlarmPolicy(burn=()))

    def counts(n: int, missed: int) -> dict[str, dict[str, dict[str, dict[str, int]]]]:
        return {"chat": {"ttft_p99": {"5m": {"requests": n, "missed": missed}}}}

    begun = alarms.judge(counts(100, 50), {"chat": {"ttft_p99": 1_500_000}}, 10**15)
    assert "50 of 100 requests (50.0%) of the last 5m passed 1.5 ms" in begun[0].text
    assert alarms.judge(counts(0, 0), {"chat": {"ttft_p99": 1_500_000}}, 10**15 + 300 * S) == []
    said = alarms.firing[0].text
    assert said == "ttft_p99 of lane chat: no request was judged in the last 5m, nothing burns."
