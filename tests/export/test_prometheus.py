import collections

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

import tailrace
from tailrace.export.metric_table import METRIC_TABLE, REQUEST_LABELS, Metric, metric_markdown
from tailrace.export.prometheus import GatewayMetrics, MetricsSnapshot
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.thresholds import MS, Objectives
from tests.store.samples import realistic


def samples(metrics, **accept):
    text, _type = metrics.render(**accept)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text.decode())
        for sample in family.samples
    }


def series(found, name, **labels):
    """The values of a metric that carry these labels, summed."""
    wanted = set(labels.items())
    return sum(value for (known, given), value in found.items() if known == name and wanted <= set(given))


def observed(records, **arguments):
    metrics = GatewayMetrics(**arguments)
    for record in records:
        metrics.observe(record)
    return metrics


def test_the_exposition_names_exactly_what_the_table_names():
    metrics = observed(realistic(200, failing=0.3))
    text, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    families = {family.name: family for family in parse(text.decode())}
    for metric in METRIC_TABLE.values():
        family = families.pop(metric.name.removesuffix("_total"))
        assert family.type == metric.kind
        assert family.documentation == metric.definition
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), metric.name
    assert not families


def test_outcomes_by_reason_and_stage_add_up_to_the_requests():
    records = realistic(3000, failing=0.3)
    found = samples(observed(records))
    expected = collections.Counter((r.outcome.value, r.reason.value, r.died_in) for r in records)
    for (outcome, reason, stage), n in expected.items():
        assert series(found, "tailrace_requests_total", outcome=outcome, reason=reason, stage=stage) == n
    assert series(found, "tailrace_requests_total") == 3000
    assert len(expected) > 20


@pytest.mark.parametrize(
    ("name", "edge", "field"),
    [
        ("tailrace_ttft_seconds", "0.5", "ttft_ns"),
        ("tailrace_tpot_seconds", "0.08", "tpot_ns"),
        ("tailrace_chunk_gap_max_seconds", "0.15", "chunk_gap_max_ns"),
        ("tailrace_chunk_gap_max_seconds", "0.5", "chunk_gap_max_ns"),
    ],
)
def test_attainment_of_the_default_objectives_can_be_read_exactly(name, edge, field):
    records = realistic(2000)
    edge_ns = round(float(edge) * 1e9)
    # The bound itself is met: `le` includes it.
    records[0] = msgspec.structs.replace(records[0], **{field: edge_ns})
    records[1] = msgspec.structs.replace(records[1], **{field: edge_ns + 1})
    found = samples(observed(records))
    values = [getattr(record, field) for record in records if getattr(record, field) is not None]
    assert series(found, f"{name}_bucket", le=edge) == sum(value <= edge_ns for value in values)
    assert series(found, f"{name}_count") == len(values)
    assert series(found, f"{name}_sum") == pytest.approx(sum(values) / 1e9)


def test_stages_by_lane_add_up_to_end_to_end():
    records = realistic(1000)
    found = samples(observed(records))
    assert series(found, "tailrace_stage_seconds_sum") == pytest.approx(sum(r.e2e_ns for r in records) / 1e9)
    for lane in ("interactive", "batch"):
        queue = [record.queue_ns for record in records if record.lane == lane]
        assert series(found, "tailrace_stage_seconds_count", stage="queue", lane=lane) == len(queue)
        assert series(found, "tailrace_stage_seconds_sum", stage="queue", lane=lane) == pytest.approx(sum(queue) / 1e9)
    assert series(found, "tailrace_stage_part_seconds_count", part="queue.gateway") == 1000


def test_a_first_token_that_was_not_seen_is_counted_and_never_observed():
    seen, blind, whole = realistic(3, failing=0)
    blind = msgspec.structs.replace(blind, ttft_ns=None)
    whole = msgspec.structs.replace(whole, ttft_ns=None, stream=False)
    found = samples(observed([seen, blind, whole]))
    assert series(found, "tailrace_ttft_seconds_count") == 1
    assert series(found, "tailrace_ttft_missing_total") == 1


def test_objectives_become_bounds_and_are_said_in_the_info_metric():
    objectives = Objectives(bounds={"ttft": {0.99: 333 * MS, 0.5: 100 * MS}, "e2e": {0.99: 3000 * MS}})
    metrics = observed(realistic(100, failing=0), objectives=objectives)
    found = samples(metrics)
    assert series(found, "tailrace_ttft_seconds_bucket", le="0.333") > 0
    assert series(found, "tailrace_e2e_seconds_bucket", le="3.0") > 0
    assert series(found, "tailrace_build_info", version=tailrace.__version__, bucket_list="1+0.333+3") == 1
    assert series(samples(GatewayMetrics()), "tailrace_build_info", bucket_list="1") == 1


def test_drop_counters_are_there_before_anything_was_dropped():
    metrics = GatewayMetrics()
    metrics.records({"acknowledged": 7, "waiting": 2}, disk_ok=True)
    found = samples(metrics)
    for kind in ("normal", "slow"):
        assert found["tailrace_records_dropped_total", (("class", kind),)] == 0
    metrics.records({"acknowledged": 9, "waiting": 0, "dropped.normal": 3, "dropped.failed": 1}, disk_ok=False)
    found = samples(metrics)
    assert series(found, "tailrace_records_dropped_total") == 4
    assert series(found, "tailrace_records_dropped_total", **{"class": "failed"}) == 1
    assert series(found, "tailrace_records_acknowledged_total") == 9
    assert series(found, "tailrace_records_disk_ok") == 0


def test_live_numbers_are_pulled_at_every_scrape():
    metrics, calls = GatewayMetrics(), []

    def pull(target):
        calls.append(1)
        target.clear("tailrace_requests_in_flight")
        target.gauge("tailrace_requests_in_flight", len(calls), lane=f"lane{len(calls)}")

    metrics.on_render(pull)
    metrics.render()
    found = samples(metrics)
    assert found["tailrace_requests_in_flight", (("lane", "lane2"),)] == 2
    assert series(found, "tailrace_requests_in_flight", lane="lane1") == 0, "a lane that is gone is gone"


def test_wrong_names_and_labels_are_bugs_of_the_caller():
    metrics = GatewayMetrics()
    with pytest.raises(KeyError):
        metrics.gauge("tailrace_mood", 1)
    with pytest.raises(ValueError, match="has the labels lane, not none"):
        metrics.gauge("tailrace_requests_in_flight", 1)


def test_names_invented_by_clients_cannot_fill_the_memory():
    record = realistic(1, failing=0)[0]
    metrics = observed(msgspec.structs.replace(record, model=f"model-{n}") for n in range(1000))
    found = samples(metrics)
    assert series(found, "tailrace_ttft_seconds_count") == 1000
    assert series(found, "tailrace_ttft_seconds_count", model="other") == 900
    assert len({dict(labels)["model"] for name, labels in found if name == "tailrace_ttft_seconds_count"}) == 101


def test_odd_label_values_are_escaped():
    record = msgspec.structs.replace(realistic(1, failing=0)[0], model='a"b\\c\nd')
    found = samples(observed([record]))
    assert series(found, "tailrace_ttft_seconds_count", model='a"b\\c\nd') == 1


def test_openmetrics_where_the_scraper_asks_for_it():
    metrics = observed(realistic(50, failing=0.2))
    text, content_type = metrics.render(accept="application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")
    assert {family.name for family in parse_openmetrics(text.decode())} >= {
        "tailrace_requests",
        "tailrace_ttft_seconds",
    }


def test_slow_requests_and_tokens():
    records = [
        msgspec.structs.replace(record, slow=["ttft", "gap"], stall_count=2, retries=1, client_blocked_ns=500 * MS)
        for record in realistic(10, failing=0)
    ]
    found = samples(observed(records))
    assert series(found, "tailrace_slow_requests_total", threshold="ttft") == 10
    assert series(found, "tailrace_slow_requests_total", threshold="gap") == 10
    assert series(found, "tailrace_stalls_total") == 20
    assert series(found, "tailrace_retries_total") == 10
    assert series(found, "tailrace_client_blocked_seconds_total") == pytest.approx(5.0)
    assert series(found, "tailrace_output_tokens_total") == sum(record.output_tokens for record in records)
    assert series(found, "tailrace_e2e_seconds_count", outcome=OutcomeKind.COMPLETED.value) == 10


def test_the_reference_table_has_a_row_for_every_metric():
    rows = metric_markdown().splitlines()
    assert len(rows) == len(METRIC_TABLE) + 2
    for metric, row in zip(METRIC_TABLE.values(), rows[2:], strict=True):
        assert row.startswith(f"| `{metric.name}` | {metric.kind} |")
        assert row.count(" | ") == 4
        assert metric.definition.endswith(".")


def test_a_metric_of_ended_requests_is_one_entry_of_the_table():
    entry = Metric(
        name="tailrace_best_of_total",
        kind="counter",
        labels=("lane", "outcome"),
        unit="answers",
        definition="Answers computed and thrown away.",
        of=lambda record: record.best_of - record.n or None,
    )
    records = realistic(20)
    table = METRIC_TABLE | {entry.name: entry}
    found = samples(observed([msgspec.structs.replace(records[0], best_of=4), *records[1:]], table=table))
    assert series(found, entry.name, outcome=records[0].outcome.value) == 3


def test_what_a_metric_reads_has_labels_that_a_request_has():
    for metric in METRIC_TABLE.values():
        if metric.of is not None:
            assert set(metric.labels) <= set(REQUEST_LABELS), metric.name
            assert metric.kind in {"counter", "histogram"}, metric.name


def test_several_processes_add_up_to_one():
    records = realistic(300, failing=0.3)
    whole = observed(records)
    parts = [observed(records[start::3]) for start in range(3)]
    for part, lag in zip(parts, (0.25, 0.5, 0.125), strict=True):
        part.gauge("tailrace_event_loop_lag_seconds", lag)
        part.gauge("tailrace_records_disk_ok", int(lag < 0.5))
        part.gauge("tailrace_requests_in_flight", 2, lane="default")
    merged = GatewayMetrics()
    for part in parts:
        sent = msgspec.msgpack.encode(part.snapshot())
        merged.absorb(msgspec.msgpack.decode(sent, type=MetricsSnapshot))
    mine, theirs = samples(merged), samples(whole)
    assert {key for key in mine if key not in theirs} == {
        ("tailrace_event_loop_lag_seconds", ()),
        ("tailrace_records_disk_ok", ()),
        ("tailrace_requests_in_flight", (("lane", "default"),)),
    }
    for key, value in theirs.items():
        assert mine[key] == pytest.approx(value, rel=1e-9), key
    assert mine["tailrace_event_loop_lag_seconds", ()] == 0.5
    assert mine["tailrace_records_disk_ok", ()] == 0
    assert series(mine, "tailrace_requests_in_flight") == 6


def test_of_a_process_that_is_gone_what_it_counted_stays_and_its_gauges_do_not():
    gone = observed(realistic(50))
    gone.gauge("tailrace_requests_in_flight", 3, lane="default")
    merged = GatewayMetrics()
    merged.absorb(gone.snapshot().ended())
    found = samples(merged)
    assert series(found, "tailrace_requests_total") == 50
    assert series(found, "tailrace_requests_in_flight") == 0


def test_processes_with_other_bounds_agree_at_the_common_ones():
    records = realistic(200)
    plain = observed(records)
    own = observed(records, objectives=Objectives(bounds={"ttft": {0.99: 300 * MS}}))
    for mine, theirs in ((plain, own), (own, plain)):
        merged = GatewayMetrics() if mine is plain else GatewayMetrics(Objectives(bounds={"ttft": {0.99: 300 * MS}}))
        merged.absorb(theirs.snapshot())
        found, wanted = samples(merged), samples(plain)
        for (name, labels), value in wanted.items():
            if name == "tailrace_ttft_seconds_bucket":
                assert found[name, labels] == value, labels


def test_names_that_no_engine_served_do_not_take_every_place():
    plain = next(record for record in realistic(50) if record.outcome is OutcomeKind.COMPLETED)
    invented = [
        msgspec.structs.replace(plain, model=f"made-up-{n}", outcome=OutcomeKind.FAILED, reason=Reason.ENGINE_ERROR)
        for n in range(300)
    ]
    metrics = GatewayMetrics()
    for record in (*invented, msgspec.structs.replace(plain, model="real")):
        metrics.observe(record)
    text = metrics.render()[0].decode()
    assert 'model="real"' in text
    assert 'model="other"' in text
    assert 'model="made-up-299"' not in text
