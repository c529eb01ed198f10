"""Goodput by class: who met what, counted by hand."""

import numpy as np
import pytest

from tailrace.analyze.attainment import attainments, met_objectives, throughput
from tailrace.model.outcome import Reason
from tailrace.model.thresholds import MS, Objectives
from tests.analyze.tables import request, table

OBJECTIVES = Objectives(bounds={"ttft": {0.99: 500 * MS}, "document/ttft": {0.99: 5000 * MS}, "tpot": {0.99: 80 * MS}})


def records():
    return [
        request(0, lane="chat", prefill_ms=400, gaps_ms=[10] * 3),
        request(1, lane="chat", prefill_ms=600, gaps_ms=[10] * 3),  # misses the bound for all
        request(2, lane="document", prefill_ms=3000, gaps_ms=[10] * 3),  # keeps its own
        request(3, lane="document", prefill_ms=6000, gaps_ms=[10] * 3),  # misses its own
        request(4, lane="document", prefill_ms=300, gaps_ms=[90] * 3),  # the TPOT for all binds it too
        request(5, lane="chat", reason=Reason.QUEUE_FULL),
    ]


def test_a_class_has_its_own_bound_in_the_place_of_that_for_all():
    assert met_objectives(table(records()), OBJECTIVES).tolist() == [True, False, True, False, False, False]
    reached = attainments(table(records()), OBJECTIVES, 2.0)
    assert list(reached) == ["all", "chat", "document"]
    assert [(one.n, one.met, one.goodput_per_s) for one in reached.values()] == [(6, 2, 1.0), (3, 1, 0.5), (3, 1, 0.5)]
    assert reached["document"].objectives == {"ttft": {"p99": 5000.0}, "tpot": {"p99": 80.0}}
    assert reached["chat"].objectives == {"ttft": {"p99": 500.0}, "tpot": {"p99": 80.0}}
    assert reached["all"].share == pytest.approx(1 / 3)


def test_classes_add_up():
    reached = attainments(table(records()), OBJECTIVES, 7.0)
    whole = reached.pop("all")
    assert sum(one.n for one in reached.values()) == whole.n
    assert sum(one.met for one in reached.values()) == whole.met
    assert sum(one.goodput_per_s for one in reached.values()) == pytest.approx(whole.goodput_per_s)


def test_wilsons_interval_at_the_ends():
    good = attainments(table([request(i, gaps_ms=[10]) for i in range(20)]), OBJECTIVES, 1.0)["all"]
    assert good.share == 1.0
    # 20 of 20: n / (n + z^2).
    assert good.ci == pytest.approx([20 / (20 + 1.959964**2), 1.0])
    bad = attainments(table([request(i, reason=Reason.QUEUE_FULL) for i in range(20)]), OBJECTIVES, 1.0)["all"]
    assert bad.ci == pytest.approx([0.0, 1.959964**2 / (20 + 1.959964**2)])
    assert attainments(table([]), OBJECTIVES, 1.0)["all"].share is None


def test_what_the_load_gave_up_itself_neither_met_nor_missed():
    mine = [request(0, vantage="client", gaps_ms=[10]), request(1, vantage="client", reason=Reason.CLIENT_DISCONNECT)]
    assert attainments(table(mine), OBJECTIVES, 1.0)["all"].n == 1
    # A gateway cannot know why its client left: it may have been too slow.
    theirs = [request(0, gaps_ms=[10]), request(1, reason=Reason.CLIENT_DISCONNECT)]
    assert attainments(table(theirs), OBJECTIVES, 1.0)["all"].n == 2


def test_throughput_is_what_the_whole_summary_says():
    rates = throughput(table(records()), OBJECTIVES, 2.0)
    assert rates == (2.5, 20 / 2.0, 1.0)
    assert throughput(table(records()), OBJECTIVES, 0.0) == (0.0, 0.0, 0.0)
    assert np.isfinite(rates).all()
