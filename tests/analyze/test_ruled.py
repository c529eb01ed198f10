"""A file of thresholds, read and applied."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.analyze.compare import compare
from tailrace.analyze.ruled import apply_rules
from tailrace.model.errors import InputError
from tailrace.model.rules import Limit, parse_amount, rules_from, rules_schema
from tests.analyze.tables import table
from tests.analyze.test_compare import traffic

FILE = {
    "ttft_ms.p50": {"max_increase": "10%", "max": "500ms"},
    "error_rate": {"max": "1%"},
    "tokens_per_s": {"max_decrease": "5%"},
    "classes": {"short": {"e2e_ms.p95": {"max": "30s"}}},
    "long/ttft_ms.p50": {"max": 10_000},
}


def test_a_file_is_read_with_its_units():
    rules = rules_from(FILE, "rules.yaml")
    assert [rule.written for rule in rules] == [
        "ttft_ms.p50 max_increase 10%",
        "ttft_ms.p50 max 500ms",
        "error_rate max 1%",
        "tokens_per_s max_decrease 5%",
        "short/e2e_ms.p95 max 30s",
        "long/ttft_ms.p50 max 10000",
    ]
    assert [(rule.amount, rule.unit) for rule in rules][-2:] == [(30_000.0, "ms"), (10_000.0, "ms")]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (None, "no rules"),
        ([], "no rules"),
        ({"ttft.p99": {"max": "1s"}}, "there is no metric 'ttft.p99'"),
        ({"ttft_ms.p97": {"max": "1s"}}, "there is no metric"),
        ({"ttft_ms.p99": {"max_incrase": "1s"}}, "max_incrase"),
        ({"ttft_ms.p99": {"max": "fast"}}, "ttft_ms.p99"),
        ({"ttft_ms.p99": {"max": "10%"}}, "% does not fit ttft_ms.p99"),
        ({"ttft_ms.p99": {"max_increase": 10}}, "max_increase needs a unit"),
        ({"ttft_ms.p99": {}}, "it sets no limit"),
        ({"error_rate": {"max": "5ms"}}, "ms does not fit error_rate"),
        ({"classes": {"chat": {"error_rate": {"max": "1%"}}}}, "known of all requests together only"),
        ({"classes": ["chat"]}, "class -> metric"),
        ({"classes": {"chat": 5}}, "metric -> limits"),
    ],
)
def test_what_cannot_be_read_is_named(data, told):
    with pytest.raises(InputError) as error:
        rules_from(data, "rules.yaml")
    assert told in str(error.value)
    assert "rules.yaml" in str(error.value)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["ttft_ms.p99", "error_rate", "tokens_per_s", "classes", "x/e2e_ms.max"])


@given(st.dictionaries(names | st.text(max_size=6), json_like, max_size=4))
def test_anything_is_read_or_refused_in_words(data):
    told, rules = "", []
    try:
        rules = rules_from(data, "r.yaml")
    except InputError as error:
        told = str(error)
    assert bool(rules) is not ("r.yaml" in told)
    assert all(rule.unit in ("%", "ms", "/s") for rule in rules)


@given(st.floats(0, 1e6, allow_nan=False).map(lambda x: round(x, 3)), st.sampled_from(["%", "ms", "s", "us", "/s", ""]))
def test_amounts_keep_their_size(number, unit):
    amount, kind = parse_amount(f"{number:.3f}{unit}")
    factor = {"s": 1e3, "us": 1e-3}.get(unit, 1.0)
    assert amount == pytest.approx(number * factor, rel=1e-9, abs=1e-9)
    assert kind == {"s": "ms", "us": "ms"}.get(unit, unit)


def judged(data, a, b):
    return {one.rule: one for one in apply_rules(compare(table(a), table(b)), rules_from(data, "r.yaml"))}


def test_kept_broken_and_undecided():
    a, b = traffic(noise=1), traffic(noise=2, ttft_ms=240, failed=25)
    found = judged(
        FILE | {"short/ttft_ms.p99": {"max_increase": "1%"}, "e2e_ms.p50": {"max_increase": "0.001ms"}}, a, b
    )
    assert found["ttft_ms.p50 max_increase 10%"].passed is False
    assert found["ttft_ms.p50 max 500ms"].passed is True
    assert found["error_rate max 1%"].passed is False
    assert "4.63 %" in found["error_rate max 1%"].text
    assert found["short/e2e_ms.p95 max 30s"].passed is True
    few = found["short/ttft_ms.p99 max_increase 1%"]
    assert few.passed is None
    assert "500 requests" in few.text


def test_a_rise_within_chance_is_undecided_not_broken():
    found = judged({"longest_wait_ms.p95": {"max_increase": "0.01%"}}, traffic(noise=3), traffic(noise=8))
    (one,) = found.values()
    if one.measured is not None and one.measured > 0.01:
        assert one.passed is None
        assert "chance" in one.text
    else:
        assert one.passed is True


def test_a_class_or_metric_that_was_not_measured_breaks_its_rule():
    a = traffic()
    found = judged({"classes": {"shrot": {"ttft_ms.p50": {"max": "1s"}}}}, a, a)
    (one,) = found.values()
    assert one.passed is False
    assert "there is no class 'shrot'; there are: long, short" in one.text
    refused = judged({"ttft_ms.p50": {"max": "1s"}}, a[:5], a[:5])
    assert next(iter(refused.values())).passed is False


def test_the_schema_knows_what_the_reader_knows():
    schema = rules_schema()
    assert set(schema["$defs"]["Limit"]["properties"]) == set(Limit.__struct_fields__)
    assert msgspec.json.decode(msgspec.json.encode(schema)) == schema
    assert {"error_rate", "tokens_per_s", "classes"} <= set(schema["properties"])
