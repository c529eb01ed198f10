"""What is remembered of a gateway's own changes: bounded, in words, without a secret."""

from __future__ import annotations

import pytest

from tailrace.diagnose.readers.happenings import events_of, read_happenings
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


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"\xff", b'{"happenings": [1]}', b'{"happenings": [{"text": "x"}]}']
)
def test_what_is_no_answer_of_it_is_refused(body):
    with pytest.raises(InputError, match="happenings"):
        read_happenings(body, "http://a/happenings")
