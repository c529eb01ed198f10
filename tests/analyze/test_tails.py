import numpy as np
import pytest

from tailrace.analyze.buckets import tail_by_length
from tailrace.analyze.classes import classify
from tailrace.analyze.decompose import stage_change, tail_stages
from tailrace.analyze.failures import failures_by_stage
from tailrace.analyze.same_work import same_distribution, same_work
from tailrace.model.outcome import Reason
from tests.analyze.tables import MS, request, table


def served(n=600, *, queue=0.0, seed=0, every=20, queue_every=1500.0):
    rng = np.random.default_rng(seed)
    return table(
        [
            request(
                i,
                at_ms=i * 80,
                queue_ms=float(queue + (queue_every if every and i % every == 0 else 5) * rng.uniform(0.8, 1.2)),
                gaps_ms=(20 * rng.lognormal(0, 0.1, 20)).tolist(),
            )
            for i in range(n)
        ]
    )


def test_the_stage_that_makes_the_tail():
    tail = tail_stages(served())
    assert tail is not None
    assert tail.leader == "queue"
    assert sum(tail.tail_ms.values()) == pytest.approx(tail.value_ms, rel=0.05)
    assert tail.rows >= 10
    assert "queue makes the tail" in tail.sentence
    assert all(i % 20 == 0 for i in tail.members)


def test_no_tail_no_leader():
    tail = tail_stages(served(every=0))
    assert tail is not None
    assert tail.leader == ""


def test_of_ttft_only_what_lies_before_the_first_token():
    tail = tail_stages(served(), "ttft")
    assert tail is not None
    assert set(tail.tail_ms) <= {"ingress", "queue", "preprocess", "encode", "prefill", "unattributed"}
    assert tail.leader == "queue"


def test_a_client_that_cannot_split_ttft_says_unattributed():
    records = [request(i, vantage="client", prefill_ms=3000 if i % 20 == 0 else 50) for i in range(400)]
    tail = tail_stages(table(records), "ttft")
    assert tail is not None
    assert tail.leader == "unattributed"


def test_change_is_carried_by_the_stage_that_changed():
    changes = stage_change(served(queue_every=200), served(seed=1), np.random.default_rng(0), block_s=4)
    assert changes["queue"].named
    assert not changes["decode"].named
    assert changes["queue"].low > 0


def test_crowding_out_is_said():
    # Requests that wait have short answers here: decode is smaller in the tail.
    records = [
        request(i, at_ms=i * 10, queue_ms=4000 if i % 10 == 0 else 0, gaps_ms=[20] * (2 if i % 10 == 0 else 60))
        for i in range(500)
    ]
    tail = tail_stages(table(records))
    assert tail is not None
    assert tail.excess_ms["decode"] < 0
    assert "crowding-out" in tail.sentence


def test_cells_without_support_are_marked():
    records = [request(i, prompt=100, gaps_ms=[10] * 30, prefill_ms=50 + i) for i in range(500)]
    records += [request(1000 + i, prompt=5000, gaps_ms=[10] * 100, prefill_ms=900) for i in range(30)]
    records += [request(2000, prompt=100, reason=Reason.ENGINE_ERROR)]
    cells = {(cell.prompt, cell.output): cell for cell in tail_by_length(table(records))}
    full, thin = cells["0-255", "0-63"], cells["4096-16383", "64-255"]
    assert (full.n, full.p99) == (500, pytest.approx(50 + 0.99 * 499))
    assert (thin.n, thin.p50, thin.p95, thin.p99, thin.max) == (30, 900.0, None, None, 900.0)
    assert cells["16384+", "1024+"].n == 0
    assert sum(cell.n for cell in cells.values()) == 530


def test_failures_by_reason_and_stage():
    records = [request(i) for i in range(6)]
    records += [
        request(10 + i, reason=Reason.FIRST_TOKEN_TIMEOUT, died_in="prefill", prefill_ms=5000) for i in range(3)
    ]
    records += [request(20, reason=Reason.QUEUE_FULL, died_in="ingress")]
    rows = failures_by_stage(table(records))
    assert [(row.reason, row.stage, row.n, row.outcome) for row in rows] == [
        ("first_token_timeout", "prefill", 3, "timed_out"),
        ("queue_full", "ingress", 1, "rejected"),
    ]
    assert rows[0].share == 0.3
    assert rows[0].median_age_ms == 5000.0
    assert failures_by_stage(table([request(0)])) == []


def test_classes_are_lanes_where_both_know_them():
    a = table([request(i, lane="chat", prompt=200) for i in range(9)] + [request(9, lane="doc", prompt=4000)])
    classes = classify(a, a)
    assert (classes.names, classes.interactive) == (["chat", "doc"], {"chat"})
    assert classes.interactive_mask(0).sum() == 9


def test_two_lanes_of_equal_prompts_are_both_interactive():
    a = table([request(i, lane="ab"[i % 2]) for i in range(10)])
    assert classify(a).interactive == {"a", "b"}


def test_one_lane_is_split_by_the_prompt():
    a = table([request(i, lane="default", prompt=8000 if i == 0 else 200) for i in range(10)])
    assert classify(a).names == ["short", "long"]
    unknown = table([request(i, lane="default", prompt=None) for i in range(10)])
    assert classify(unknown).names == ["all"]


def test_same_work_sees_lengths_and_arrivals():
    a = table([request(i, at_ms=i * 50, prompt=200, gaps_ms=[10] * (i % 7)) for i in range(200)])
    b = table([request(i, at_ms=i * 50 + 3, prompt=200, gaps_ms=[11] * (i % 7)) for i in range(200)])
    c = table([request(i, at_ms=i * 25, prompt=400, gaps_ms=[10] * 20) for i in range(200)])
    assert same_work(a, b, classify(a, b))["same"]
    work = same_work(a, c, classify(a, c))
    assert not any(work[key] for key in ("same", "arrivals", "prompt_tokens", "output_tokens"))
    assert len(work["differs"]) == 3


def test_a_longer_tail_of_prompts_is_another_distribution():
    rng = np.random.default_rng(0)
    body = rng.normal(200, 10, 3000)
    few, more = body.copy(), rng.normal(200, 10, 3000)
    few[:15], more[:150] = 8000, 8000
    assert not same_distribution(few, more)
    assert same_distribution(body, rng.normal(200, 10, 3000))
    assert same_distribution(np.array([]), np.array([]))
    assert not same_distribution(np.array([]), body)


def test_run_offsets_are_the_axis_where_every_record_has_them():
    from tailrace.analyze.timebase import aligned_on_one_clock, starts_ns

    own = table([request(i, run_offset_ns=i * MS, intended_to_sent_ns=2 * MS, at_ms=999 * i) for i in range(3)])
    assert starts_ns(own).tolist() == [0, MS, 2 * MS]
    assert aligned_on_one_clock(own)
    assert not aligned_on_one_clock(table([request(0)]))
