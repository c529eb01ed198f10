from __future__ import annotations

import jsonschema
import pytest

from tailrace.app.serve_settings import settings_from
from tailrace.gateway.config import Config, config_from, json_schema, load_config, to_plain
from tailrace.gateway.config_values import parse_duration
from tailrace.model.errors import ConfigError
from tailrace.model.thresholds import MS, S

DESIGN = """
listen: 0.0.0.0:8080
admin: 127.0.0.1:9480
backends:
  - {name: a100-1, url: "http://10.0.0.5:8000", engine: vllm}
lanes:
  - {name: interactive, match: {max_prompt_tokens: 2000, stream: true}, running: 64, queued: 128, order: shortest_first}
  - {name: long_document, match: {min_prompt_tokens: 2001}, running: 4, queued: 32}
  - {name: batch, match: {header: {x-lane: batch}}, running: 16, queued: 1000, priority: low}
budgets: {queue: 2s, first_token: 5s, idle: 2s, total: 120s, unstreamed_total: 30s}
objectives: {ttft_p99: 500ms, tpot_p99: 80ms}
"""


def test_the_documented_file_is_valid(tmp_path):
    path = tmp_path / "tailrace.yaml"
    path.write_text(DESIGN)
    lanes = load_config(path).lane_policies()
    assert [lane.name for lane in lanes] == ["interactive", "long_document", "batch", "default"]
    assert lanes[0].budgets.first_token_ns == 5 * S
    assert lanes[2].priority > lanes[0].priority


def test_the_published_schema_accepts_the_documented_file_and_refuses_a_typo(tmp_path):
    import yaml

    document = yaml.safe_load(DESIGN)
    jsonschema.validate(document, json_schema())
    document["lanes"][0]["runing"] = 3
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, json_schema())


def test_defaults_need_no_file():
    config = Config.for_upstream("http://127.0.0.1:8000")
    assert config.listen.startswith("127.0.0.1:")
    assert config.lane_policies()[0].name == "default"


@pytest.mark.parametrize(
    ("raw", "place", "remedy"),
    [
        ({"lanes": [{"name": "a", "runing": 3}]}, "lanes[0]", "Did you mean `running`?"),
        ({"backends": [{"url": "http://e", "engine_pid": 3}]}, "backends[0]", "Another section has such a key"),
        ({"budgets": {"queue": 5}}, "budgets.queue", "docs/reference/config.md"),
        ({"budgets": {"queue": "5 parsecs"}}, "budgets.queue", "docs/reference/config.md"),
        ({"backends": []}, "backends", "--upstream"),
        ({"backends": [{"url": "localhost:8000"}]}, "backends[0].url", "http://127.0.0.1:8000"),
        ({"backends": [{"url": "http://x:99999"}]}, "backends[0].url", "http://127.0.0.1:8000"),
        ({"objectives": {"ttft_p98": "1s"}, "backends": [{"url": "http://x"}]}, "objectives.ttft_p98", "p99"),
        ({"records": {"sample": 3.0}, "backends": [{"url": "http://x"}]}, "records.sample", "0 to 1"),
        (
            {"lanes": [{"name": "a"}, {"name": "a"}], "backends": [{"url": "http://x"}]},
            "lanes[0]",
            "its own name",
        ),
        ({"websocket": {"idle": "1ms"}, "backends": [{"url": "http://x"}]}, "websocket", "at least"),
        ({"websocket": {"session": "0s"}, "backends": [{"url": "http://x"}]}, "websocket", "at least"),
        ({"websocket": {"message_bytes": 0}, "backends": [{"url": "http://x"}]}, "websocket", "at least 1"),
        ({"websocket": {"session": 5}, "backends": [{"url": "http://x"}]}, "websocket.session", "config.md"),
        ([], "config", ""),
    ],
)
def test_a_wrong_key_or_value_names_the_place_and_the_remedy(raw, place, remedy):
    with pytest.raises(ConfigError) as caught:
        config_from(raw)
    assert place in caught.value.place
    assert remedy in caught.value.remedy


def test_a_bound_that_may_be_absent_is_written_back_as_it_was_read():
    for websocket in ({}, {"session": "7200s", "idle": "60s"}):
        raw = {"backends": [{"url": "http://x"}], "websocket": websocket}
        config = config_from(raw)
        assert config.websocket.session == (7200 * S if websocket else None)
        assert config_from(to_plain(config)) == config
        jsonschema.validate(raw, json_schema())


def test_bad_yaml_and_a_missing_file_are_named(tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("listen: [")
    with pytest.raises(ConfigError, match=r"bad\.yaml:1"):
        load_config(bad)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "absent.yaml")


@pytest.mark.parametrize(("text", "ns"), [("150ms", 150 * MS), ("2s", 2 * S), ("1.5m", 90 * S), ("1h", 3600 * S)])
def test_durations(text, ns):
    assert parse_duration(text) == ns


def test_a_file_that_is_no_text_is_said_to_be_none(tmp_path):
    file = tmp_path / "tailrace.yaml"
    file.write_bytes(b"\xcf\xfa\xed\xfe")
    with pytest.raises(ConfigError, match="no UTF-8 text"):
        load_config(file)


def test_a_key_that_no_header_can_carry_is_refused():
    with pytest.raises(ConfigError, match="api_key"):
        config_from({"backends": [{"url": "http://127.0.0.1:8000", "api_key": "secret\n"}]})


def test_a_name_outside_ascii_is_what_the_resolver_makes_of_it():
    Config.for_upstream("http://b\u00fccher.example:8000")


def test_an_upstream_completes_a_file_without_backends_and_wins_over_its_own(tmp_path):
    file = tmp_path / "tailrace.yaml"
    file.write_text("lanes: [{name: default, running: 4}]\n")
    config = settings_from(upstream="http://127.0.0.1:9000", file=str(file))
    assert [backend.url for backend in config.backends] == ["http://127.0.0.1:9000"]
    assert config.lane_policies()[0].running == 4
    with pytest.raises(ConfigError, match="no backend"):
        settings_from(file=str(file))
    file.write_text("backends: [{url: 'http://127.0.0.1:8000', engine: vllm}]\n")
    config = settings_from(upstream="http://127.0.0.1:9000", file=str(file))
    assert [(backend.url, backend.engine) for backend in config.backends] == [("http://127.0.0.1:9000", "vllm")]


def test_a_key_that_stands_twice_is_refused_where_it_stands(tmp_path) -> None:
    file = tmp_path / "tailrace.yaml"
    file.write_text('backends: [{url: "http://127.0.0.1:9"}]\nlanes: [{name: one}]\nlanes: [{name: two}]\n')
    with pytest.raises(ConfigError, match="`lanes` stands here twice") as caught:
        load_config(file)
    assert str(caught.value.place).endswith(":3:1")


@pytest.mark.parametrize(
    ("signals", "place"),
    [
        ({"period": "10ms"}, "signals.period"),
        ({"gpu": "somewhere"}, "signals.gpu"),
        ({"engine_pid": 0}, "signals.engine_pid"),
    ],
)
def test_signals_that_cannot_be(signals, place):
    with pytest.raises(ConfigError) as error:
        config_from({"backends": [{"url": "http://127.0.0.1:8000"}], "signals": signals})
    assert place in error.value.place


def test_the_word_off_is_a_truth_value_in_yaml(tmp_path):
    path = tmp_path / "tailrace.yaml"
    path.write_text("backends: [{url: 'http://127.0.0.1:8000'}]\nsignals: {gpu: off}\n")
    assert load_config(path).signals.gpu_source == "off"
