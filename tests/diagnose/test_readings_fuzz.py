"""Whatever readings hold (nothing, one value, holes, infinities, huge and negative ones), no rule breaks on them, and
none prints a number that is none.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.diagnose.causes import CAUSES
from tailrace.diagnose.configured.lint import lint
from tailrace.diagnose.observed import Arm, Clock, Counter, Histogram, Observed, Place, Quoted, Rows, Series
from tailrace.diagnose.scale import rule_on
from tailrace.diagnose.triage_arms import triage_arms
from tests.diagnose.honesty import NONE

ODD = st.sampled_from([float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 1.0, 1e300, -1e300, 1e-300, 5.0, 700.0])
VALUES = st.one_of(ODD, st.floats(0.0, 5000.0))
LENGTHS = st.sampled_from([0, 1, 2, 5, 12, 30])
GAUGES = st.sampled_from(
    [
        "running",
        "waiting",
        "kv_usage",
        "swapped",
        "output_tok_s",
        "prompt_tok_s",
        "gpu_util",
        "sm_clock",
        "power",
        "power_limit",
        "temperature",
        "chunk_gap",
        "wall",
        "typical_wall",
        "step",
        "step_prompt_tokens",
        "step_decodes",
        "sessions",
        "restarts_total",
        "ready_endpoints",
        "iterations_total",
        "health_rtt",
        "loop_lag",
        "engine_errors_total",
        "concurrency",
        "clock_event",
        "chunk_service",
        "samples_fed",
        "audio_received_s",
        "audio_processed_s",
        "gc_pause",
        "cpu_ms_per_step",
        "itl",
        "inflight_client",
        "inflight_upstream",
    ]
)
AXES = st.sampled_from(["time", "session_age", "uptime", "iteration", "output_position", "turn", "scrape"])
COUNTERS = st.sampled_from(
    [
        "preemptions",
        "queue_time",
        "prefix_queried",
        "prefix_missed",
        "prefix_found",
        "nr_throttled",
        "nr_periods",
        "throttled",
        "finished",
    ]
)
COLUMNS = {
    "requests": "t_send_ms t_first_ms t_last_ms t_intended_ms prompt_tokens output_tokens ttft_ms in_flight "
    "decode_tok_s http_status bytes_received usage_completion_tokens grammar cached_tokens longest_pause",
    "chunks": "t_upstream_ms t_client_ms bytes chunk text_offset",
    "access": "status upstream_status upstream upstream_bytes upstream_last attempts count",
    "turns": "end_of_turn transcription_delay llm_ttft tts_ttfb stt_duration stt_audio tts_duration tts_audio",
    "speech": "t_recv audio_start_s audio_end_s voiced rms_dbfs",
    "spans": "start_ms end_ms queue",
}
TEXT = {"chunks": ("arm", "req", "text"), "speech": ("stream_id", "utt_id", "kind", "text"), "spans": ("trace", "name")}


def arrays(draw, n):
    return np.array(draw(st.lists(VALUES, min_size=n, max_size=n)), dtype=np.float64)


@st.composite
def series(draw):
    n = draw(LENGTHS)
    labels = [{}, {"engine": "0"}, {"engine": "1"}, {"gpu": "0"}, {"stream": "a"}, {"stream": "b"}]
    return Series(
        name=draw(GAUGES),
        axis=draw(AXES),
        clock=draw(st.sampled_from(list(Clock))),
        labels=draw(st.sampled_from(labels)),
        at=np.cumsum(np.full(n, draw(st.sampled_from([0.5, 1.0, 10.0])))),
        values=arrays(draw, n),
        place=Place("s.csv", 2),
    )


@st.composite
def rows(draw):
    kind = draw(st.sampled_from(sorted(COLUMNS)))
    n = draw(LENGTHS)
    names = draw(st.lists(st.sampled_from(COLUMNS[kind].split()), min_size=1, max_size=6, unique=True))
    columns = {name: arrays(draw, n) for name in names}
    words = st.sampled_from(["", "a", "b", "audio", "partial", "final", "direct", "via"])
    for name in TEXT.get(kind, ()):
        columns[name] = np.array(draw(st.lists(words, min_size=n, max_size=n)), dtype=object)
    return Rows(kind=kind, columns=columns, place=Place("r.csv", 2))


@st.composite
def histograms(draw):
    bounds = draw(st.sampled_from([[], [10.0], [1.0, 5.0, 10.0, 400.0]]))
    counts = draw(st.lists(VALUES, min_size=len(bounds) + 1, max_size=len(bounds) + 1))
    return Histogram(
        name=draw(st.sampled_from(["ttft", "e2e", "queue", "inference", "itl", "prompt_tokens"])),
        bounds=bounds,
        counts=counts,
        sum=draw(st.one_of(st.none(), VALUES)),
        order=draw(st.integers(0, 2)),
        unit="ms",
        lifetime=draw(st.booleans()),
        place=Place("m.prom", 4),
    )


@st.composite
def arms(draw):
    names = draw(st.lists(st.sampled_from(["ttft", "itl", "e2e", "n", "req_s", "queue", "rtf"]), max_size=4))
    made = [Quoted(quantity=name, stat=draw(st.sampled_from(["", "p50", "p99"])), value=draw(VALUES)) for name in names]
    return Arm(name=draw(st.sampled_from(["before", "after", "tts"])), values={item.key: item for item in made})


@st.composite
def evidence(draw):
    return Observed(
        series=draw(st.lists(series(), max_size=4)),
        rows=draw(st.lists(rows(), max_size=2)),
        histograms=draw(st.lists(histograms(), max_size=3)),
        counters=[
            Counter(name=draw(COUNTERS), first=draw(VALUES), last=draw(VALUES), order=draw(st.integers(0, 1)))
            for _ in range(draw(st.integers(0, 3)))
        ],
        arms=draw(st.lists(arms(), max_size=2)),
    )


def printed(finding) -> str:
    said = [finding.statement, finding.relation, finding.advice, finding.price, finding.verify]
    return " ".join([*said, *finding.missing, *finding.disproof_checked, *(item.text for item in finding.evidence)])


@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(evidence())
def test_no_rule_breaks_on_odd_readings_and_none_prints_what_is_no_number(observed):
    observed = observed.finite()
    rule_on(observed)
    triage_arms(observed)
    found = [finding for cause in CAUSES if (finding := cause.observe(observed)) is not None]
    found += lint(CAUSES, observed, [finding.code for finding in found])
    for finding in found:
        # That a number is none is what the checks of the numbers themselves say.
        if not finding.code.startswith("METRIC"):
            assert not NONE.search(printed(finding)), finding


def test_what_is_no_number_is_left_out_and_counted():
    odd = np.array([1.0, np.inf, np.nan, -np.inf])
    seen = Observed(
        series=[Series(name="running", at=np.arange(4.0), values=odd, place=Place("a.csv"))],
        rows=[Rows(kind="requests", columns={"ttft_ms": odd}, place=Place("b.csv"))],
        counters=[Counter(name="preemptions", first=0.0, last=float("nan"), place=Place("c.prom"))],
        histograms=[Histogram(name="ttft", bounds=[1.0], counts=[1.0, float("inf")], place=Place("c.prom"))],
    ).finite()
    assert np.isnan(seen.series[0].values[[1, 2, 3]]).all()
    assert np.isnan(seen.rows[0].numbers("ttft_ms")[[1, 3]]).all()
    assert (seen.counters, seen.histograms) == ([], [])
    assert [item.source for item in seen.understood] == ["a.csv", "b.csv", "c.prom"]
    assert "2 values are no numbers" in seen.understood[0].said[0]


@pytest.mark.parametrize("value", [0.0, 1e150])
def test_what_is_finite_stays_as_it_is(value):
    seen = Observed(series=[Series(name="running", at=np.zeros(1), values=np.array([value]))])
    assert seen.finite() is seen
