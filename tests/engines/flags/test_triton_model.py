"""Triton's configurations in both spellings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engines.flags.text_format import parse_text_format
from tailrace.engines.flags.triton_model import triton_model
from tailrace.model.errors import InputError

TEXT = """
# a comment
name: "echo"  backend: 'python'
max_batch_size: 0x8
dynamic_batching {
  preferred_batch_size: [ 4, 16 ]
  max_queue_delay_microseconds: 5000
  priority_levels: 2, default_priority_level: 1;
  default_queue_policy < timeout_action: REJECT default_timeout_microseconds: 500000 max_queue_size: 16 >
}
instance_group [ { count: 2 kind: KIND_GPU gpus: [0, 1] }, { count: 1 kind: KIND_CPU } ]
model_transaction_policy { decoupled: true }
parameters: { key: "x" value: { string_value: "a\\n" "b" } }
parameters: { key: "y" value: { string_value: "c" } }
"""


def test_the_text_format_is_read():
    said = parse_text_format(TEXT)
    assert said["parameters"][0]["value"]["string_value"] == "a\nb"
    model = triton_model(said, source="config.pbtxt")
    assert model.name == "echo"
    assert model.max_batch_size == 8
    assert model.batching.preferred == (4, 16)
    assert model.batching.delay_us == 5000
    assert model.batching.priority_levels == 2
    assert model.batching.policy.max_queue_size == 16
    assert model.batching.policy.default_timeout_us == 500000
    assert model.instances == 5
    assert model.decoupled


def test_the_same_from_the_server_s_json():
    model = triton_model(
        {
            "name": "echo",
            "max_batch_size": 8,
            "dynamic_batching": {
                "preferred_batch_size": [4],
                "max_queue_delay_microseconds": "5000",
                "default_queue_policy": {"max_queue_size": 16, "default_timeout_microseconds": "500000"},
            },
            "instance_group": [{"count": 1, "kind": "KIND_CPU", "gpus": []}],
        },
        source="/v2/models/echo/config",
    )
    assert model.batching.delay_us == 5000
    assert model.batching.policy.default_timeout_us == 500000
    assert model.instances == 1


@pytest.mark.parametrize("text", ["name", "name:", "a {", "a: [1", "a: }", "a { b: 1", "1: 2", 'a: "open', "%"])
def test_broken_text_is_refused_with_its_line(text):
    with pytest.raises(InputError) as caught:
        parse_text_format("x: 1\n" + text, place="c.pbtxt")
    assert caught.value.place.startswith("c.pbtxt:")


def test_deep_nesting_is_refused():
    with pytest.raises(InputError):
        parse_text_format("a {" * 1000 + "}" * 1000)


@given(st.text(alphabet=st.sampled_from("ab: {}[]<>\"'\n#,;1.-"), max_size=200))
def test_any_text_is_read_or_refused(text):
    try:
        triton_model(parse_text_format(text), source="x")
    except InputError:
        return
