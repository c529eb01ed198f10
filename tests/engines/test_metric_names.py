"""Known names: every engine's captured or listed metrics are explained, and whatever is not is reported."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engines.metric_names.sglang import SGLANG_METRICS
from tailrace.engines.metric_names.table import MOST_REPORTED, MetricNames, read_names
from tailrace.engines.metric_names.vllm import VLLM_METRICS
from tailrace.engines.prometheus_text import parse_scrape
from tailrace.engines.registry import ADAPTERS, adapter
from tests.engines.read_in_source import dynamo, tensorrt_llm, tgi
from tests.measure.shared import sample_text

shared = pytest.mark.needs("shared")
VERSIONS = ["0.6.6", "0.8.5", "0.11.0", "0.16.0", "0.22.0", "0.32.0"]


@shared
@pytest.mark.parametrize("version", VERSIONS)
def test_every_name_of_six_vllm_versions_is_known_with_its_versions(version: str) -> None:
    told = json.loads(sample_text("vllm/metric_names_by_version.json"))
    order = VERSIONS.index(version)
    for name in told[version]["metric_names"]:
        bare = name if name in VLLM_METRICS.by_name else f"{name.removesuffix('_total')}_total"
        family = VLLM_METRICS.by_name[bare]
        assert family.since
        assert VERSIONS.index(family.since) <= order, name
        assert not family.until or VERSIONS.index(family.until) >= order, name


@shared
def test_captured_scrapes_have_no_unknown_names() -> None:
    for name, path in (("vllm", "vllm/metrics_0.32.0.prom"), ("triton", "triton/metrics_2.51.0.prom")):
        each = adapter(name)
        assert each.unknown_metrics(parse_scrape(sample_text(path))).count == 0
    llama = sample_text("llamacpp/slots_metrics_disconnect.txt").partition("### /metrics at end")[2]
    scrape = parse_scrape(llama)
    assert "llamacpp:n_decode_total" in scrape
    assert adapter("llamacpp").unknown_metrics(scrape).count == 0


@shared
def test_every_listed_name_of_sglang_is_known() -> None:
    rows = [row.split("\t") for row in sample_text("sglang/metric_names_0.5.23.tsv").splitlines()[1:]]
    assert len(rows) == 173
    for name, kind, _ in rows:
        assert SGLANG_METRICS.by_name[name].kind == kind.lower()


@pytest.mark.parametrize(
    ("name", "text"), [("tgi", tgi.METRICS), ("tensorrt_llm", tensorrt_llm.METRICS), ("dynamo", dynamo.METRICS)]
)
def test_names_read_in_source_are_known(name: str, text: str) -> None:
    assert adapter(name).unknown_metrics(parse_scrape(text)).count == 0


@shared
def test_a_renamed_metric_is_reported_and_its_signal_absent() -> None:
    text = sample_text("vllm/metrics_0.32.0.prom").replace("vllm:kv_cache_usage_perc", "vllm:kv_share_in_use")
    unknown = adapter("vllm").unknown_metrics(parse_scrape(text, prefixes=("vllm:",)))
    assert (unknown.names, unknown.count) == (("vllm:kv_share_in_use",), 1)
    assert adapter("vllm").parse_metrics(text, 1).kv_usage is None


def test_an_unknown_histogram_is_one_name() -> None:
    text = """# TYPE vllm:new_seconds histogram
vllm:new_seconds_bucket{le="1"} 1
vllm:new_seconds_bucket{le="+Inf"} 1
vllm:new_seconds_sum 0.5
vllm:new_seconds_count 1
vllm:new_seconds_created 1.7e9
"""
    assert adapter("vllm").unknown_metrics(parse_scrape(text)).names == ("vllm:new_seconds",)


def test_a_flood_of_names_is_counted_and_not_listed() -> None:
    text = "\n".join(f"vllm:made_up_{number} 1" for number in range(1000))
    unknown = adapter("vllm").unknown_metrics(parse_scrape(text))
    assert (len(unknown.names), unknown.count) == (MOST_REPORTED, 1000)


def test_other_programs_names_are_nobodys() -> None:
    assert adapter("vllm").unknown_metrics(parse_scrape("process_open_fds 3\npython_info 1\n")).count == 0


def test_every_signal_that_is_read_is_a_known_name() -> None:
    for each in ADAPTERS.values():
        for aliases in each.signals.values():
            for alias in aliases:
                assert each.metric_names is not None
                old = alias.name == "llamacpp:kv_cache_usage_ratio"
                assert old or alias.name in each.metric_names, alias.name


def test_every_family_says_what_it_is() -> None:
    for each in ADAPTERS.values():
        for family in each.metric_names or ():
            assert family.what
            assert family.kind in {"counter", "gauge", "histogram", "summary", "gaugehistogram", "any"}, family.name


@given(st.lists(st.sampled_from(["a", "b_total", "c"]), unique=True), st.sampled_from(["x_", "y:"]))
def test_what_is_in_the_table_is_never_unknown(names: list[str], prefix: str) -> None:
    table = MetricNames(read_names(prefix, "\n".join(f"{name} counter : counted" for name in names)))
    scrape = parse_scrape("\n".join(f"{prefix}{name} 1" for name in ["a", "b_total", "c"]))
    unknown = table.unknown(scrape, (prefix,))
    assert set(unknown.names) == {f"{prefix}{name}" for name in {"a", "b_total", "c"} - set(names)}
