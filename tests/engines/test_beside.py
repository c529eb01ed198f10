"""An engine's counts beside ours."""

from __future__ import annotations

import pytest

from tailrace.engines.beside import counts_beside, counts_markdown, counts_table
from tailrace.engines.odometer import Odometer
from tailrace.engines.prometheus_text import parse_scrape
from tailrace.engines.window import EngineWindow, window_between
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tests.conftest import shared_path


def window(before: str, after: str, ours: dict[str, int]) -> EngineWindow:
    odometer = Odometer()
    first = odometer.feed(parse_scrape(before), 0, ours={})
    return window_between(first, odometer.feed(parse_scrape(after), 10**9, ours=ours))


VLLM = """
vllm:request_success_total{{finished_reason="stop"}} {stop}
vllm:request_success_total{{finished_reason="abort"}} 0
vllm:admission_rejections_total{{reason="max_num_queued_reqs"}} {refused}
vllm:num_preemptions_total {preempted}
vllm:e2e_request_latency_seconds_bucket{{le="1"}} {stop}
vllm:e2e_request_latency_seconds_bucket{{le="+Inf"}} {stop}
vllm:e2e_request_latency_seconds_sum {stop}
"""


def vllm(stop: int, refused: int = 0, preempted: int = 0) -> str:
    return VLLM.format(stop=stop, refused=refused, preempted=preempted)


def test_abort_counter_zero_but_gateway_counts_cancel() -> None:
    ours = {"completed": 95, "cancelled/client_disconnect": 4, "timed_out/first_token_timeout": 1}
    beside = counts_beside(window(vllm(10), vllm(105), ours), engine="vllm")
    assert beside.engine["aborted"] == 0
    assert beside.engine["finished"] == 95
    assert beside.gateway["sent"] == 100
    assert beside.gateway["cancelled"] == 4
    assert beside.gateway["cancelled/client_disconnect"] == 4
    assert "counts 0 aborted, and 5 of 100 requests (5.0%) were cut here" in beside.why[0]
    assert 'finished_reason="abort"' in beside.why[1]


def test_cut_requests_that_the_engine_takes_for_finished() -> None:
    text = "nv_inference_request_success {}\n"
    ours = {"completed": 6, "cancelled/client_disconnect": 4}
    beside = counts_beside(window(text.format(0), text.format(10), ours), engine="triton")
    assert beside.engine["finished"] == 10
    assert "seems to count them as finished" in beside.why[0]


def test_nothing_to_explain_where_the_counts_agree() -> None:
    assert counts_beside(window(vllm(0), vllm(7), {"completed": 7}), engine="vllm").why == []


def test_refusals_preemptions_and_other_users() -> None:
    ours = {"completed": 5, "rejected/queue_full": 3}
    beside = counts_beside(window(vllm(0), vllm(9, refused=3, preempted=2), ours), engine="vllm")
    assert beside.engine["rejected.max_num_queued_reqs"] == 3
    assert any("4 more than completed here" in why for why in beside.why)
    assert any("2 preemptions, counted when a request resumes" in why for why in beside.why)
    fewer = counts_beside(window(vllm(0), vllm(5, refused=1), ours), engine="vllm")
    assert any("counts 1 refused, 3 were refused" in why for why in fewer.why)


@pytest.mark.needs("shared")
def test_triton_counts_no_full_queue() -> None:
    text = (shared_path() / "data/engine_samples/triton/metrics_2.51.0.prom").read_text(encoding="utf-8")
    beside = counts_beside(window(text, text, {"rejected/queue_full": 36}), engine="triton")
    assert beside.engine["aborted"] is None
    assert any("36 were refused" in why for why in beside.why)
    assert any("queue timeouts as REJECTED" in why for why in beside.why)


def test_an_engine_that_counts_no_requests() -> None:
    text = "llamacpp:tokens_predicted_total {}\n"
    ours = {"completed": 3, "cancelled/client_disconnect": 1}
    beside = counts_beside(window(text.format(0), text.format(9), ours), engine="llamacpp")
    assert beside.engine == dict.fromkeys(("finished", "aborted", "rejected", "failed", "preemptions"))
    assert "has no counter of aborted requests" in beside.why[0]


def record(number: int, e2e_s: float, outcome: OutcomeKind, reason: Reason = Reason.NONE) -> RequestRecord:
    return RequestRecord(
        vantage="gateway",
        request_id=str(number),
        start_unix_ns=number,
        e2e_ns=round(e2e_s * 1e9),
        outcome=outcome,
        reason=reason,
    )


def test_survivor_bias_note() -> None:
    """Ten of a hundred gave up after 30 s: the engine's p99 does not know them, and the table says so."""
    records = [record(n, 0.5, OutcomeKind.COMPLETED) for n in range(90)]
    records += [record(n, 30.0, OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT) for n in range(90, 100)]
    rows = counts_table(vllm(0), vllm(90), records, engine="vllm")
    said = {row.what: (row.engine, row.ours) for row in rows if row.what != "why"}
    assert said["requests"] == ("", "100")
    assert said["aborted (client left, cut by a budget)"] == ("0", "10")
    assert said["e2e p99 of what completed"] == ("< 1000 ms (n=90)", "500 ms (n=90)")
    assert said["e2e p99 of all requests"] == ("not kept", "at least 30000 ms (n=100)")
    text = counts_markdown(rows)
    assert "| finished | 90 | 90 |" in text
    assert "- survivor bias: the engine counts 0 aborted, and 10 of 100" in text
