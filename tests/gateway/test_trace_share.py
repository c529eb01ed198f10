"""Which requests an engine is asked to trace."""

from __future__ import annotations

from collections import Counter

import pytest

from tailrace.gateway.config import config_from
from tailrace.gateway.config_sections import TracesConfig
from tailrace.gateway.ids import random_hex
from tailrace.gateway.trace_share import Budget, TraceShare
from tailrace.model.errors import ConfigError
from tailrace.model.thresholds import S

PLENTY = 1e6


def flag(header: bytes) -> str:
    return header.decode()[-2:] if header else "none"


def flags(share: TraceShare, count: int, engine: str = "vllm", **named: bytes) -> Counter[str]:
    headers = {name.replace("_", "-").encode(): value for name, value in named.items()}
    traces = [share.trace(headers, engine=engine, endpoint="/v1/chat/completions") for _ in range(count)]
    return Counter(flag(one.header) for one in traces)


def test_a_share_is_drawn_by_the_trace_and_the_same_everywhere() -> None:
    here, there = (TraceShare(TracesConfig(share=0.25, per_second=PLENTY)) for _ in range(2))
    ids = [random_hex(16) for _ in range(4000)]
    drawn = [here.begins(one) for one in ids]
    assert drawn == [there.begins(one) for one in ids]
    assert 800 < sum(drawn) < 1200


def test_none_and_all() -> None:
    assert flags(TraceShare(TracesConfig(share=0.0, per_second=PLENTY)), 200) == {"00": 200}
    assert flags(TraceShare(TracesConfig(share=1.0, per_second=PLENTY)), 200) == {"01": 200}
    assert flags(TraceShare(TracesConfig(share=1.0, per_second=0.0)), 200) == {"00": 200}
    # The largest number that 14 digits can have is below "all of them".
    assert TraceShare(TracesConfig(share=1.0, per_second=PLENTY)).begins("f" * 32)


def test_traceparent_flag_00_no_span() -> None:
    """vLLM makes no span of it, so what is not in the share costs the engine nothing."""
    got = flags(TraceShare(TracesConfig()), 2000)
    assert got["01"] <= 2  # one a second, whatever the load
    assert got["00"] >= 1998


def test_triton_never_gets_sampled_1_for_all() -> None:
    """It traces whatever brings a parent, whatever the flag and its `rate`: outside the share it gets none."""
    share = TraceShare(TracesConfig())
    sampled = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"
    got = flags(share, 1000, engine="triton", traceparent=sampled) + flags(share, 1000, engine="triton")
    assert got["00"] == 0
    assert got["none"] >= 1990
    # Not recognised yet, but asked by Triton's routes.
    trace = share.trace({b"traceparent": sampled[:-1] + b"0"}, engine="", endpoint="/v2/models/{model}/infer")
    assert trace.header == b""
    assert (trace.trace_id, trace.parent_id) == ("a" * 32, "b" * 16)  # the record is in the caller's trace all the same


def test_a_caller_that_samples_everything_is_held_to_the_budget() -> None:
    share = TraceShare(TracesConfig(share=0.0, per_second=5.0))
    got = flags(share, 500, traceparent=b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-03")
    assert 5 <= got["03"] <= 7
    assert got["02"] == 500 - got["03"]  # the other flags are the caller's
    assert share.budgets["caller"].withheld == got["02"]


def test_a_caller_that_does_not_sample_is_not_overruled() -> None:
    share = TraceShare(TracesConfig(share=1.0, per_second=PLENTY))
    assert flags(share, 50, traceparent=b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-00") == {"00": 50}


@pytest.mark.parametrize("traceparent", [None, b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-00"])
def test_one_can_be_asked_for_and_not_many(traceparent: bytes | None) -> None:
    share = TraceShare(TracesConfig(share=0.0, per_second=2.0))
    more = {} if traceparent is None else {"traceparent": traceparent}
    got = flags(share, 100, x_tailrace_trace=b"1", **more)
    assert 2 <= got["01"] <= 3
    assert flags(share, 5, x_tailrace_trace=b"yes", **more) == {"00": 5}
    # The budget of the others is not touched.
    assert share.budgets["share"].granted == share.budgets["caller"].granted == 0


def test_the_budget_of_a_second_is_shared_by_processes() -> None:
    budget = Budget(2.0)
    assert [budget.take(1), budget.take(1), budget.take(1)] == [True, True, False]
    assert not budget.take(1 + S // 4)
    assert budget.take(1 + S // 2)
    assert sum(budget.take(1 + 100 * S) for _ in range(9)) == 2  # a quiet minute saves nothing up
    four = TraceShare(TracesConfig(per_second=4.0), processes=4)
    assert sum(four.budgets["caller"].take(1 + S // 100 * step) for step in range(1000)) <= 11


def test_a_new_configuration_keeps_the_counts() -> None:
    share = TraceShare(TracesConfig(share=1.0, per_second=1.0))
    flags(share, 10)
    share.reconfigure(TracesConfig(share=0.0, per_second=1.0))
    assert share.budgets["share"].withheld == 9
    assert flags(share, 10) == {"00": 10}


@pytest.mark.parametrize(
    "traces",
    [{"share": 1.5}, {"share": -0.1}, {"per_second": -1}, {"body_bytes": 10}, {"body_bytes": 10**12}, {"shar": 1}],
)
def test_impossible_keys_are_named(traces: dict[str, float]) -> None:
    with pytest.raises(ConfigError) as refused:
        config_from({"backends": [{"url": "http://127.0.0.1:1"}], "traces": traces})
    assert "traces" in str(refused.value)
