"""The composition behind `tailrace serve`: what the page, the guard and the diagnosis add to the gateway."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest


def get(url: str, token: str = "") -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def ask(url: str, text: str) -> None:
    body = json.dumps({"model": "x", "max_tokens": 4, "messages": [{"role": "user", "content": text}]}).encode()
    models = json.loads(get(f"{url}/v1/models")[1])
    body = body.replace(b'"x"', json.dumps(models["data"][0]["id"]).encode())
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", data=body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


@pytest.fixture
def guarded(start_tailrace, tmp_path):
    engine = start_tailrace("engine", "--port", "0", "--json")
    config = tmp_path / "tailrace.yaml"
    config.write_text(
        json.dumps(
            {
                "listen": "127.0.0.1:0",
                "admin": "127.0.0.1:0",
                "admin_token": "secret",
                "backends": [{"url": engine.ready["url"]}],
                "records": {"dir": str(tmp_path / "records")},
            }
        )
    )
    return start_tailrace("serve", "-c", str(config), "--json").ready


def test_the_page_opens_without_a_token_and_its_data_do_not(guarded):
    admin = guarded["admin"]
    assert get(f"{admin}/")[0] == 200
    for path in ("/records", "/config", "/metrics", "/diagnosis", "/page/live", "/page/view"):
        assert get(f"{admin}{path}")[0] == 401, path
        assert get(f"{admin}{path}", "secret")[0] == 200, path


def test_the_diagnosis_of_a_live_gateway(guarded):
    for number in range(3):
        ask(guarded["url"], f"question {number}")
    diagnosis = json.loads(get(f"{guarded['admin']}/diagnosis", "secret")[1])
    assert diagnosis["schema"] == 1
    assert diagnosis["action"] in ("none", "collect")
    assert diagnosis["summary"]


def test_the_simulated_engine_is_named_simulated_in_every_record(guarded):
    ask(guarded["url"], "who are you?")
    lines = get(f"{guarded['admin']}/records", "secret")[1].splitlines()
    chat = [record for record in map(json.loads, lines) if record["endpoint"] == "/v1/chat/completions"]
    assert [record["engine"] for record in chat] == ["simulated"]
