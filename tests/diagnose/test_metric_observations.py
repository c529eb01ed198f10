"""Scrapes as observations: deltas by engine, percentiles from buckets, restarts, other names, answers of Prometheus."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.diagnose.readers.metric_observations import observations_of
from tailrace.diagnose.readers.metric_readings import is_query_answer, read_readings
from tailrace.model.errors import InputError

EDGES = ["0.5", "1", "2.5", "5", "10", "+Inf"]
BEFORE = [100, 150, 180, 190, 195, 200]
AFTER = [180, 270, 340, 380, 395, 420]


def histogram(name, counts, labels="", edges=EDGES, total=None):
    inner = f"{labels}," if labels else ""
    lines = [f"# TYPE {name} histogram"]
    lines += [f'{name}_bucket{{{inner}le="{edge}"}} {count}' for edge, count in zip(edges, counts, strict=True)]
    lines += [f"{name}_count{{{labels}}} {counts[-1]}", f"{name}_sum{{{labels}}} {total or counts[-1]}"]
    return "\n".join(lines) + "\n"


def seen(*texts, names=None):
    readings = []
    for place, text in enumerate(texts):
        readings += read_readings(text, names[place] if names else f"{place}.prom")
    return observations_of(readings)


def counters(found, name):
    return [(item.labels, item.delta) for item in found.of_counter(name)]


def test_the_worked_percentiles():
    name = "vllm:time_to_first_token_seconds"
    (window,) = seen(histogram(name, BEFORE), histogram(name, AFTER)).of_histogram("ttft")
    assert window.counts == [80, 40, 40, 30, 10, 20]
    assert [window.quantile(p) for p in (0.5, 0.9)] == pytest.approx([875.0, 9000.0])
    assert window.quantile(0.99) == math.inf
    assert (window.n, window.mean) == (220, 1000.0)


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("vllm:time_to_first_token_seconds", 1.0),
        ("sglang:time_to_first_token_seconds", 1.0),
        ("trtllm_time_to_first_token_seconds", 1.0),
        ("dynamo_frontend_time_to_first_token_seconds", 1.0),
        ("my_router_time_to_first_token_seconds", 1.0),
        ("app_ttft_milliseconds", 1000.0),
    ],
)
def test_the_same_quantity_under_any_name(name, scale):
    edges = [edge if edge == "+Inf" else repr(float(edge) * scale) for edge in EDGES]
    found = seen(histogram(name, BEFORE, edges=edges), histogram(name, AFTER, edges=edges))
    assert found.of_histogram("ttft")[0].quantile(0.5) == pytest.approx(875.0)


def test_engines_are_told_apart_and_put_together_at_the_bounds_that_both_have():
    name = "vllm:time_to_first_token_seconds"
    one = [histogram(name, BEFORE, 'engine="0"'), histogram(name, AFTER, 'engine="0"')]
    coarse = ["1", "10", "+Inf"]
    other = [histogram(name, [0, 0, 0], 'engine="1"', coarse), histogram(name, [10, 20, 30], 'engine="1"', coarse)]
    found = seen(one[0] + other[0], one[1] + other[1])
    assert [item.labels for item in found.of_histogram("ttft")] == [{"engine": "0"}, {"engine": "1"}]
    (both,) = found.windows("ttft")
    assert (both.bounds, both.counts) == ([1000.0, 10000.0], [130, 90, 30])


def test_counters_by_engine_and_reason_and_what_their_total_is():
    text = (
        "# TYPE vllm:num_preemptions_total counter\n"
        'vllm:num_preemptions_total{{engine="0",model_name="m"}} {0}\n'
        'vllm:num_preemptions_total{{engine="1",model_name="m"}} {1}\n'
        'vllm:num_preemptions_created{{engine="0"}} 1.7e9\n'
        'vllm:request_success_total{{engine="0",finished_reason="stop"}} {2}\n'
        'vllm:request_success_total{{engine="0",finished_reason="abort"}} {3}\n'
    )
    found = seen(text.format(5, 7, 100, 1), text.format(9, 7, 150, 4))
    assert counters(found, "preemptions") == [({"engine": "0"}, 4.0), ({"engine": "1"}, 0.0)]
    assert found.delta("preemptions") == 4.0
    assert counters(found, "aborted") == [({"engine": "0"}, 3.0)]
    assert found.delta("finished") == 53.0
    assert str(found.of_counter("preemptions")[0].place) == "1.prom:2"
    assert not any("created" in item.raw for item in found.counters)


@pytest.mark.parametrize(
    ("text", "running", "waiting", "kv"),
    [
        ("vllm:num_requests_running 3\nvllm:num_requests_waiting 9\nvllm:gpu_cache_usage_perc 0.98\n", 3, 9, 0.98),
        ("sglang:num_running_reqs 3\nsglang:num_queue_reqs 9\nsglang:token_usage 0.98\n", 3, 9, 0.98),
        (
            "llamacpp:requests_processing 3\nllamacpp:requests_deferred 9\nllamacpp:kv_cache_usage_ratio 0.98\n",
            3,
            9,
            0.98,
        ),
        ("tgi_batch_current_size 3\ntgi_queue_size 9\n", 3, 9, None),
        ("my_engine_running_requests 3\nmy_engine_queue_size 9\nmy_engine_kv_cache_usage_percent 98\n", 3, 9, 0.98),
    ],
)
def test_gauges_of_any_engine(text, running, waiting, kv):
    found = seen(text)
    assert found.of_series("running")[0].values[-1] == running
    assert found.of_series("waiting")[0].values[-1] == waiting
    assert [item.values[-1] for item in found.of_series("kv_usage")] == ([] if kv is None else [pytest.approx(kv)])


def test_one_scrape_has_no_delta():
    found = seen(histogram("vllm:time_to_first_token_seconds", AFTER) + "vllm:num_preemptions_total 480\n")
    assert (found.of_counter("preemptions")[0].lifetime, found.delta("preemptions")) == (True, None)
    assert found.of_histogram("ttft")[0].lifetime


def test_a_window_with_a_restart_is_dropped_and_said():
    text = "# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total {}\n"
    found = seen(*(text.format(count) for count in (5, 9, 2, 4)))
    assert [(item.order, item.delta) for item in found.of_counter("preemptions")] == [(0, 4.0), (2, 2.0)]
    assert [(event.kind, event.attributes["order"]) for event in found.events] == [("restart", 1.0)]
    (said,) = found.understood
    assert (said.understood, said.total, said.what) == (2, 3, "windows")
    # The only window there is stays, without a delta.
    only = seen(text.format(9), text.format(2))
    assert (only.of_counter("preemptions")[0].restarted, only.delta("preemptions")) == (True, None)


def test_one_engine_of_two_may_restart_alone():
    text = 'vllm:num_preemptions_total{{engine="0"}} {0}\nvllm:num_preemptions_total{{engine="1"}} {1}\n'
    found = seen(text.format(5, 5), text.format(9, 0), text.format(12, 3))
    deltas = [(item.labels["engine"], item.order, item.delta) for item in found.of_counter("preemptions")]
    assert deltas == [("0", 0, 4.0), ("0", 1, 3.0), ("1", 1, 3.0)]


def test_two_files_in_the_wrong_order_are_turned_round_where_one_process_wrote_both():
    text = (
        "process_start_time_seconds 1.7e9\n# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total {}\n"
    )
    found = seen(text.format(480), text.format(0))
    assert found.delta("preemptions") == 480.0
    assert "taken the other way" in found.understood[0].examples[0]
    named = seen(text.format(0), text.format(480), names=["x.after.prom", "x.before.prom"])
    assert named.delta("preemptions") in (480.0, None)


def test_files_of_several_replicas_are_compared_within_a_replica():
    text = "# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total {}\nvllm:num_requests_running {}\n"
    found = seen(
        *(text.format(*pair) for pair in ((0, 8), (900, 8), (5, 27), (901, 1))),
        names=["pod-1.t0.prom", "pod-2.t0.prom", "pod-1.t1.prom", "pod-2.t1.prom"],
    )
    assert counters(found, "preemptions") == [({"replica": "pod-1"}, 5.0), ({"replica": "pod-2"}, 1.0)]
    assert [list(item.values) for item in found.of_series("running")] == [[8, 27], [8, 1]]


def test_several_scrapes_in_one_file_however_they_are_parted():
    block = "# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total {}\nvllm:num_requests_running 1\n"
    blocks = [block.format(count) for count in (0, 4, 9)]
    for text in ("".join(blocks), "# EOF\n".join(blocks), "\n--- t=10 s ---\n".join(blocks)):
        assert [item.delta for item in seen(text).of_counter("preemptions")] == [4.0, 5.0], text
    stamped = "".join(f"# t={at}s\n{text}" for at, text in zip((0, 10, 30), blocks, strict=True))
    assert [item.window_s for item in seen(stamped).of_counter("preemptions")] == [10.0, 20.0]


def test_openmetrics_and_federation():
    text = (
        "# TYPE vllm:num_preemptions counter\n"
        'vllm:num_preemptions_total{{engine="0"}} {0} # {{trace_id="x"}} 1.0 1700000000.0\n'
        'vllm:num_preemptions_created{{engine="0"}} 1.7e9\n# EOF\n'
    )
    assert seen(text.format(1), text.format(4)).delta("preemptions") == 3.0
    federated = 'vllm:num_preemptions_total{{instance="a:8000",job="vllm"}} {0} {1}\n'
    found = seen(federated.format(10, 1_700_000_000_000), federated.format(15, 1_700_000_060_000))
    assert [(item.labels, item.delta, item.window_s) for item in found.of_counter("preemptions")] == [
        ({"instance": "a:8000"}, 5.0, 60.0)
    ]


def test_answers_of_the_query_api():
    vector = {
        "status": "success",
        "data": {
            "resultType": "vector",
            "result": [
                {"metric": {"__name__": "vllm:num_requests_running", "engine": str(at)}, "value": [1.7e9, value]}
                for at, value in enumerate(("27", "5", "0"))
            ],
        },
    }
    text = json.dumps(vector)
    assert is_query_answer(text.encode())
    found = seen(text)
    assert [(item.labels["engine"], item.values[-1]) for item in found.of_series("running")] == [
        ("0", 27.0),
        ("1", 5.0),
        ("2", 0.0),
    ]
    matrix = [{"metric": {"__name__": "vllm:num_preemptions_total"}, "values": [[100, "1"], [130, "4"], [160, "9"]]}]
    assert is_query_answer(json.dumps(matrix).encode())
    (first, second) = seen(json.dumps(matrix)).of_counter("preemptions")
    assert (first.delta, second.delta, first.window_s) == (3.0, 5.0, 30.0)
    with pytest.raises(InputError, match="no series"):
        read_readings('{"status":"success","data":{"resultType":"vector","result":[]}}', "x")
    assert not is_query_answer(b'{"metric": 1}')


def test_triton_gives_a_mean_by_two_counters():
    text = (
        'nv_inference_request_success{{model="m"}} {0}\nnv_inference_queue_duration_us{{model="m"}} {1}\n'
        'nv_inference_compute_infer_duration_us{{model="m"}} {2}\n'
    )
    types = "# TYPE nv_inference_request_success counter\n"
    found = seen(types + text.format(10, 1000, 1000), types + text.format(20, 81_000, 21_000))
    assert found.delta("queue_time") / found.delta("finished") == 8.0
    assert found.delta("compute_time") / found.delta("finished") == 2.0


def test_the_engines_own_configuration_is_a_setting():
    text = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="4818"} 1.0\n'
    settings_seen = {item.name: item.value for item in seen(text).settings}
    assert settings_seen["kv_block_tokens"] == 16
    assert settings_seen["num_gpu_blocks"] == 4818


def test_what_nobody_knows_keeps_its_own_name():
    found = seen("node_load1 0.5\nmy_requests_total 3\n", "node_load1 0.7\nmy_requests_total 9\n")
    assert list(found.of_series("node_load1")[0].values) == [0.5, 0.7]
    assert found.delta("my_requests_total") == 6.0


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error(text):
    if not text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        observations_of([*read_readings(text, "a"), *read_readings(text, "b")])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 50), min_size=5, max_size=5), min_size=2, max_size=4),
    st.lists(st.floats(0.001, 1e4), min_size=4, max_size=4, unique=True),
)
def test_windows_add_up_to_what_was_counted_and_quantiles_lie_in_their_bucket(steps, edges):
    edges = [*(repr(edge) for edge in sorted(edges)), "+Inf"]
    cumulative, texts = [0] * 5, [histogram("vllm:time_to_first_token_seconds", [0] * 5, edges=edges)]
    for step in steps:
        cumulative = [sum(step[: place + 1]) + before for place, before in enumerate(cumulative)]
        texts.append(histogram("vllm:time_to_first_token_seconds", cumulative, edges=edges))
    windows = seen(*texts).of_histogram("ttft")
    assert [item.counts for item in windows] == [[float(count) for count in step] for step in steps]
    for window in windows:
        value = window.quantile(0.5)
        assert (value is None) == (window.n == 0)
        if value is not None and value != math.inf:
            assert 0 <= value <= window.bounds[-1]
