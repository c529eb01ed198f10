"""Whatever tables and forms say, rules answer or keep silent; what they say can be found in their evidence."""

import math
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.diagnose.causes import CAUSES
from tailrace.diagnose.observed import Arm, Counter, Observed, Place, Quoted, Role, Series, Setting
from tailrace.diagnose.observed.vocabulary import QUANTITIES
from tailrace.diagnose.scale import rule_on
from tailrace.diagnose.triage_arms import triage_arms

ODD = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5, 100.0, 1e-9, 1e12, 1e300, float("inf"), float("nan"), -1.7e12]),
    st.floats(0.001, 1e5),
)
PLAIN = st.floats(0.0, 1e6)
"""Readings: readers leave what is no number out of counters and series."""
STATS = st.sampled_from(["", "p50", "mean", "p95", "p99", "max"])
NAMES = st.sampled_from(
    [
        "before", "after", "direct to engine", "through the proxy", "round_robin", "cache_aware", "rank 0", "rank 1",
        "xgrammar", "outlines", "plain", "fp8", "bf16", "vllm 0.18", "vllm 0.21", "inline on the event loop",
        "off-loaded to a pool", "16", "2 CPUs", "best_of 4", "short", "long", "decode alone", "during prefill",
    ]
)  # fmt: skip
WORDS = st.sampled_from(
    [
        "changed", "same", "running", "max_num_seqs", "kv_usage_pct", "kv_capacity_tokens", "request_rate", "gap_s",
        "max_num_batched_tokens", "prefill_tok_s", "timeout_s", "max_tokens", "health_s", "gsp_num_groups", "skew",
        "gsp_system_prompt_len", "gsp_question_len", "cold_start_s", "instances", "queue_ms", "compute_ms", "step_ms",
        "batch_delay_us", "allreduce_ms", "hit_pct", "repeat_ratio_offered", "running_after_disconnect", "action",
        "in_flight_per_replica", "client_killed_at", "prompt_tokens", "preemptions", "structured_output", "cores_busy",
    ]
)  # fmt: skip
TEXTS = st.sampled_from(
    [
        "cpu request", "routing policy", "model rollout", "version 0.18 -> 0.21",
        "one replica added, no effect for 20 min", "share of requests with a JSON schema", "eviction policy",
        "12-01 08:00:02", "idle most of the time", "", "sampling: best_of 4", "admission watermark", "x" * 3000,
    ]
)  # fmt: skip
UNITS = st.sampled_from(["", "ms"])
HEADINGS = st.sampled_from(
    [*sorted(QUANTITIES), "cpu_request", "router_score", "health", "client TTFT", "connect time"]
)


@st.composite
def quoteds(draw):
    name = draw(HEADINGS)
    known = QUANTITIES.get(name)
    return Quoted(
        quantity=name, stat=draw(STATS), value=draw(ODD), unit=known.unit if known else draw(UNITS),
        relative=draw(st.integers(0, 3)) == 0, label=name.replace("_", " "),
        qualifier=draw(st.sampled_from(["", "1 s after disconnect", "all stream", "server"])), place=Place("t.md", 3),
    )  # fmt: skip


@st.composite
def arms(draw):
    numbers = draw(st.lists(quoteds(), max_size=7))
    keys = draw(
        st.dictionaries(
            st.sampled_from(
                ["concurrency", "max_num_seqs", "cpu_request", "rank", "sessions", "weights", "tensor_parallel"]
            ),
            st.one_of(ODD, NAMES),
            max_size=3,
        )
    )
    name = draw(NAMES)
    return Arm(
        name=name, label=name, keys=keys, values={item.key: item for item in numbers},
        role=draw(st.sampled_from(list(Role))), place=Place("t.md", draw(st.integers(1, 9))),
    )  # fmt: skip


GAUGES = st.sampled_from(
    [
        "running", "waiting", "inflight_client", "inflight_upstream", "sm_clock", "power", "kv_usage", "power_limit",
        "output_tok_s", "health_rtt", "nr_throttled", "nr_periods",
    ]
)  # fmt: skip


@st.composite
def series(draw):
    n = draw(st.integers(0, 5))
    values = np.array(draw(st.lists(PLAIN, min_size=n, max_size=n)), dtype=np.float64)
    name = draw(GAUGES)
    labels = draw(st.sampled_from([{}, {"engine": "0"}, {"engine": "1"}, {"gpu": "0"}]))
    return Series(name=name, labels=labels, at=np.arange(n, dtype=np.float64), values=values, place=Place("s.csv", 2))


@st.composite
def evidence(draw):
    statements = draw(
        st.lists(st.tuples(WORDS, st.one_of(ODD, TEXTS, st.booleans(), st.lists(ODD, max_size=5))), max_size=8)
    )
    counters = draw(
        st.lists(
            st.tuples(st.sampled_from(["prefix_found", "prefix_queried", "preemptions", "nr_throttled"]), PLAIN, PLAIN),
            max_size=3,
        )
    )
    return Observed(
        arms=draw(st.lists(arms(), max_size=5)),
        series=draw(st.lists(series(), max_size=4)),
        settings=[
            Setting(name=name, value=value, unit="s" if name.endswith("_s") else "ms" if name.endswith("_ms") else "")
            for name, value in statements
        ],
        counters=[Counter(name=name, first=a, last=b) for name, a, b in counters],
    )


@pytest.mark.long("every rule on a hundred drawn bodies of evidence; a slow machine needs half a minute", timeout=180)
@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(evidence())
def test_no_rule_breaks_and_every_number_of_a_statement_is_in_the_evidence(observed):
    rule_on(observed)
    assert all(rule.startswith("R") for rule in triage_arms(observed))
    for cause in CAUSES:
        finding = cause.observe(observed)
        if finding is None:
            continue
        assert finding.code == cause.code
        # That a number is none is what the checks of the numbers themselves say.
        assert finding.code.startswith("METRIC") or "nan" not in finding.statement.lower().split()
        if finding.level == "insufficient":
            continue
        text = " ".join([finding.relation, *(item.text for item in finding.evidence)]).replace(",", "")
        for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?", finding.statement.replace(",", "")):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d])", text), (finding.code, number, finding.statement)
        assert finding.explains_ms is None or math.isfinite(finding.explains_ms) or finding.explains_ms != 0


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.code)
def test_nothing_is_found_in_nothing(cause):
    assert cause.observe(Observed()) is None
