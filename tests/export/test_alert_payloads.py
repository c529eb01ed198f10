"""What receivers of alerts are sent, in the shapes that they publish."""

from __future__ import annotations

import msgspec

from tailrace.export.alert_payloads import Said, alertmanager, slack, tailrace_form
from tailrace.govern.burn_rate import Alert, State

ALERT = Alert(
    key="chat/ttft_p99/burn 1h/5m > 14.4", state=State.FIRING, severity="page", lane="chat", objective="ttft_p99",
    rule="burn 1h/5m > 14.4", bound_ns=500_000_000, requests=1000, missed=200, burn_rate=20.0, short_burn_rate=30.0,
    began_ns=5, text="ttft_p99 of lane chat: 200 of 1000 requests passed 500 ms.",
)  # fmt: skip
WHY = {
    "summary": "One long prompt holds the others up.",
    "findings": [
        {
            "code": "SCHED_PREFILL_STEALS_DECODE",
            "layer": "scheduler",
            "level": "consistent",
            "statement": "Gaps of 3.4 s <!channel> & more.",
            "advice": "Lower max_num_batched_tokens.",
        }
    ],
}


def said(state: State = State.FIRING, why: dict | None = WHY) -> Said:
    alert = msgspec.structs.replace(ALERT, state=state)
    return Said(
        alert=alert, began_unix_ns=1_700_000_000_123_000_000, until_unix_ns=1_700_000_300_123_000_000,
        gateway="http://127.0.0.1:9480", diagnosis=why,
    )  # fmt: skip


def test_our_own_form_has_everything():
    plain = tailrace_form(said())
    assert plain["bound_ms"] == 500.0
    assert plain["state"] == "firing"
    assert plain["began_unix_ms"] == 1_700_000_000_123
    assert plain["diagnosis"]["findings"][0]["code"] == "SCHED_PREFILL_STEALS_DECODE"
    assert not [name for name in plain if name.endswith("_ns")]


def test_alertmanager_groups_the_first_and_the_last_word_as_one():
    first, last = alertmanager(said())[0], alertmanager(said(State.RESOLVED, None))[0]
    assert first["labels"] == last["labels"]
    assert first["startsAt"] == "2023-11-14T22:13:20.123Z"
    assert last["endsAt"] == "2023-11-14T22:18:20.123Z"
    assert first["annotations"]["cause"] == "SCHED_PREFILL_STEALS_DECODE"
    assert all(isinstance(text, str) and text for text in first["annotations"].values())
    assert set(first) == {"labels", "annotations", "startsAt", "endsAt", "generatorURL"}


def test_slack_is_not_made_to_mention_anybody():
    message = slack(said())
    assert message["text"].startswith("[page] ttft_p99 of lane chat")
    field = message["attachments"][0]["fields"][0]
    assert "&lt;!channel&gt; &amp; more" in field["value"]
    assert "Lower max_num_batched_tokens" in field["value"]
    assert slack(said(State.RESOLVED))["attachments"][0]["color"] != message["attachments"][0]["color"]
    assert slack(said(why={"summary": "Cannot tell.", "findings": []}))["attachments"][0]["fields"][0]["value"]
    assert slack(said(why=None))["attachments"][0]["fields"] == []
