"""`--workload FILE`: what it means, and that what cannot be read is named with file, line and key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.cli.workload_file import read_workload, schema
from tailrace.model.errors import InputError
from tailrace.model.thresholds import MS, S
from tailrace.workload.length import Fixed, LogNormal, Uniform
from tailrace.workload.mix import CLASSES

WHOLE = """
objectives: {ttft_p99: 1s}
classes:
  - name: chat
    weight: 8
    prompt: 300~0.5
    output: 60
    turns: 3-8
    think: 5s~0.8
    follow_up: 40
    cancel: [after 5 tokens:0.2, "after 2s:0.1"]
    objectives: {ttft_p99: 500ms, ttft_p50: 200ms}
  - {name: document, shared_prefix: 2000, prefix_pool: 5, natural: true, model: big, extra_body: {top_k: 1}}
  - {name: speech, audio: 5s-30s, endpoint: transcriptions, stream: false}
  - {name: index, prompt: 100, endpoint: embeddings, batch: 8, prefix_hit: 0.5}
"""


def written(folder: Path, text: str) -> str:
    path = folder / "w.yaml"
    path.write_text(text)
    return str(path)


def test_every_key_means_something(tmp_path: Path):
    found = read_workload(written(tmp_path, WHOLE))
    chat, document, speech, index = found.classes
    assert (chat.weight, chat.prompt, chat.output) == (8, LogNormal(300, 0.5), Fixed(60))
    assert chat.traits.sessions is not None
    assert (chat.traits.sessions.turns, chat.traits.sessions.follow_up) == (Uniform(3, 8), Fixed(40))
    assert chat.traits.sessions.think == LogNormal(5000, 0.8, 0, 86_400_000)
    assert [str(rule) for rule in chat.traits.leaves] == ["after 5 tokens:0.2", "after 2s:0.1"]
    assert (document.prompt, document.output) == (CLASSES["document"].prompt, CLASSES["document"].output)
    assert document.traits.prefixes is not None
    assert (document.traits.prefixes.pool, document.traits.prefixes.tokens) == (5, 2000)
    assert (document.traits.call.natural, document.traits.call.model) == (True, "big")
    assert document.traits.call.extra_body == {"top_k": 1}
    assert speech.traits.audio == Uniform(5000, 30_000)
    assert (speech.traits.call.endpoint, speech.traits.call.stream) == ("transcriptions", False)
    assert index.traits.batch == 8
    assert index.traits.prefixes is not None
    assert index.traits.prefixes.hit == 0.5
    assert found.objectives is not None
    bounds = found.objectives.bounds
    assert bounds["chat/ttft"] == {0.99: 500 * MS, 0.5: 200 * MS}
    assert bounds["document/ttft"] == {0.99: S}
    assert "ttft" not in bounds


def test_json_is_yaml(tmp_path: Path):
    text = json.dumps({"classes": [{"name": "a", "prompt": 10, "output": "5-9"}]})
    (one,) = read_workload(written(tmp_path, text)).classes
    assert (one.prompt, one.output) == (Fixed(10), Uniform(5, 9))
    assert read_workload(written(tmp_path, text)).objectives is None


def test_common_objectives_alone_are_for_all(tmp_path: Path):
    text = "objectives: {e2e_p95: 10s}\nclasses: [{name: short}]\n"
    found = read_workload(written(tmp_path, text)).objectives
    assert found is not None
    assert found.bounds == {"e2e": {0.95: 10 * S}}


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("classes:\n - name: a\n   prompt: 5\n   think: 5s\n", "w.yaml:2: classes[0].turns", "later turns"),
        ("classes:\n - name: a\n   prompt: x\n", "w.yaml:3: classes[0].prompt", "no number of tokens"),
        ("classes:\n - {name: short}\n - name: a\n", "w.yaml:3: classes[1].prompt", "has no length"),
        ("classes:\n - name: short\n   promt: 5\n", "w.yaml:2: classes[0]", "unknown field `promt`"),
        ("classes:\n - name: short\n   weight: heavy\n", "w.yaml:3: classes[0].weight", "Expected `float`"),
        ("classes:\n - name: short\n   weight: 0\n", "w.yaml:3: classes[0].weight", "above 0"),
        ("classes:\n - name: short\n   cancel: soon\n", "w.yaml:3: classes[0].cancel", "cannot read"),
        ("classes:\n - name: short\n   prefix_hit: 2\n", "w.yaml:3: classes[0].prefix_hit", "at most 0.98"),
        ("classes:\n - name: short\n   prefix_pool: 9\n", "w.yaml:3: classes[0].prefix_pool", "hit rate"),
        ("classes:\n - name: short\n   objectives:\n    ttft: 5s\n", "classes[0].objectives.ttft", "cannot read"),
        ("classes:\n - {name: short}\n - {name: short}\n", "classes[1].name", "described twice"),
        ("classes:\n - {name: a/b, prompt: 5}\n", "classes[0].name", "is no name"),
        ("classes: []\n", "classes", "there is no class"),
        ("classes: [\n", "w.yaml:", "no valid YAML"),
        ("", "w.yaml", "Expected `object`"),
        ("- 1\n", "w.yaml", "Expected `object`"),
        ("classes:\n - name: short\n   name: chat\n", "w.yaml:3", "stands here twice"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(text: str, place: str, said: str, tmp_path: Path):
    with pytest.raises(InputError) as caught:
        read_workload(written(tmp_path, text))
    assert place in str(caught.value.place)
    assert said in caught.value.message
    assert caught.value.remedy


def test_the_schema_accepts_what_is_read_and_refuses_what_is_not():
    jsonschema = pytest.importorskip("jsonschema")
    import yaml

    jsonschema.validate(yaml.safe_load(WHOLE), schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"classes": [{"name": "a", "promt": 5}]}, schema())
