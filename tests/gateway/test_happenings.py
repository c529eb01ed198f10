"""What is remembered of a gateway's own changes: bounded, in words, without a secret."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tailrace.diagnose.readers.happenings import events_of, read_happenings
from tailrace.engines.facts import EngineFacts, Fact
from tailrace.gateway.config import config_from, to_plain
from tailrace.gateway.happenings import KEPT, HappeningKind, Happenings, changed_keys, ordered
from tailrace.model.errors import InputError

PLAIN = {
    "backends": [{"name": "a", "url": "http://127.0.0.1:1", "api_key": "sk-old"}],
    "lanes": [{"name": "chat", "running": 64}, {"name": "batch", "running": 16}],
    "budgets": {"queue": "2s"},
}


def changed(**after):
    return changed_keys(to_plain(config_from(PLAIN)), to_plain(config_from({**PLAIN, **after})))


def test_amounts_are_told_with_both_values_and_lanes_by_name():
    lanes = [{"name": "chat", "running": 64}, {"name": "batch", "running": 4}]
    said = changed(lanes=lanes, budgets={"queue": "500ms"})
    assert "lanes.batch.running 16 -> 4" in said
    assert "budgets.queue 2s -> 500ms" in said
    assert "chat" not in said


def test_text_may_be_a_secret_and_is_not_told():
    said = changed(backends=[{"name": "a", "url": "http://127.0.0.1:2", "api_key": "sk-new"}])
    assert "backends.a.api_key" in said
    assert "backends.a.url" in said
    assert "sk-" not in said
    assert "127.0.0.1" not in said


def test_a_lane_that_came_or_went_is_named():
    assert "lanes.batch" in changed(lanes=[{"name": "chat", "running": 64}])
    assert "no key differs" in changed()


def test_many_keys_are_counted():
    before = {f"key{number}": number for number in range(20)}
    after = {f"key{number}": number + 1 for number in range(20)}
    assert changed_keys(before, after).endswith("key5 5 -> 6 and 14 more")


def test_only_the_last_are_kept_and_several_desks_are_one():
    desk, other = Happenings(), Happenings()
    for number in range(KEPT + 10):
        desk.note(HappeningKind.CANARY, str(number))
    other.note(HappeningKind.WORKER, "last")
    assert [one["text"] for one in desk.view()] == [str(number) for number in range(10, KEPT + 10)]
    together = ordered([other.view(), desk.view()])
    assert len(together) == KEPT
    assert together[-1]["text"] == "last"


def test_they_are_events_of_a_diagnosis():
    desk = Happenings()
    desk.note(HappeningKind.DRAIN, "backend a: an operator keeps new requests away")
    ((at, text),) = events_of(desk.view())
    assert text == "backend a: an operator keeps new requests away"
    assert 1e9 < at < 1e11
    assert read_happenings(b'{"happenings": [{"at_unix_ms": 1500.0, "kind": "drain", "text": "x"}]}', "n") == [
        (1.5, "x")
    ]


def test_who_did_it_is_told():
    desk = Happenings()
    desk.note(HappeningKind.CONFIGURATION, "the configuration changed: a 1 -> 2", "SIGHUP")
    desk.note(HappeningKind.ENGINE, "the engine has restarted")
    first, second = desk.view()
    assert first["by"] == "SIGHUP"
    assert "by" not in second
    assert [text for _, text in events_of([first])] == ["the configuration changed: a 1 -> 2 (by SIGHUP)"]


def link(**facts):
    """What the desk looks at of an engine's link."""
    known = EngineFacts({key: Fact(value, "/get_server_info") for key, value in facts.items()})
    return SimpleNamespace(
        watch=SimpleNamespace(reachable=True),
        restarts=0,
        name="vllm",
        version="0.33.0",
        identity=SimpleNamespace(foreign=""),
        draining=False,
        profile=SimpleNamespace(facts=known),
    )


def test_other_settings_of_an_engine_are_told_and_what_it_forgets_is_no_change():
    desk = Happenings()
    desk.look_at_engines([("a", link(max_num_seqs=256, prefix_caching=True))])
    assert desk.view() == [], "what is seen for the first time is no change"
    desk.look_at_engines([("a", link())])  # it is away, or starts: it says nothing
    desk.look_at_engines([("a", link(max_num_seqs=128, prefix_caching=True, block_size=16))])
    (said,) = desk.view()
    assert said["kind"] == "engine"
    assert said["text"] == "backend a: the engine runs with other settings: max_num_seqs 256 -> 128"


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"\xff", b'{"happenings": [1]}', b'{"happenings": [{"text": "x"}]}']
)
def test_what_is_no_answer_of_it_is_refused(body):
    with pytest.raises(InputError, match="happenings"):
        read_happenings(body, "http://a/happenings")
