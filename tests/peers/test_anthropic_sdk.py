"""The Anthropic SDK, unmodified, with nothing but its base URL changed."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tailrace.model.outcome import OutcomeKind
from tests.conftest import ROOT
from tests.wire.scripted import SSE_HEAD, Incoming, ScriptedEngine, chunk
from tests.wire.stand import run, stand

PYTHON = ROOT / ".cache" / "peers" / "anthropic" / "bin" / "python"
CLIENT = Path(__file__).with_name("anthropic_client.py")
BUSY = {"type": "error", "error": {"type": "overloaded_error", "message": "too much to do"}}

pytestmark = [
    pytest.mark.tier("all"),
    pytest.mark.needs("anthropic"),
    pytest.mark.long("the SDK imports for seconds on a busy machine", timeout=120),
]


def named(kind: str, **value: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **value})}\n\n".encode()


def message(content: list, usage: dict, stop: str | None) -> dict[str, Any]:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
    return {**head, "content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage}


def delta(text: str) -> bytes:
    return named("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


async def engine(incoming: Incoming) -> None:
    assert incoming.target == "/v1/messages"
    assert "k" in (incoming.headers.get("x-api-key"), incoming.headers.get("authorization", "")[7:])
    counts = {"input_tokens": 5, "output_tokens": 3}
    if incoming.json["model"] == "busy":
        await incoming.reply(BUSY, 529)
    elif not incoming.json.get("stream"):
        await incoming.reply(message([{"type": "text", "text": "hello back"}], counts, "end_turn"))
    else:
        await incoming.send(SSE_HEAD)
        await incoming.chunks(named("message_start", message=message([], {**counts, "output_tokens": 1}, None)))
        await incoming.chunks(named("content_block_start", index=0, content_block={"type": "text", "text": ""}))
        for text in ("one ", "two ", "three"):
            await incoming.chunks(delta(text))
            await asyncio.sleep(0.01)
        ending = named("content_block_stop", index=0)
        ending += named("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage=counts)
        await incoming.send(chunk(ending + named("message_stop")))
        await incoming.end()


async def ask(url: str) -> dict[str, Any]:
    # Somebody may use this SDK himself: his settings are not ours.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("ANTHROPIC_")}
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(str(PYTHON), str(CLIENT), url, stdout=pipe, stderr=pipe, env=env)
    out, err = await child.communicate()
    assert child.returncode == 0, err.decode()
    return json.loads(out)


def test_answers_streams_and_errors_are_those_of_the_engine() -> None:
    async def test() -> None:
        async with ScriptedEngine(engine) as alone:
            direct = await ask(alone.url)
        async with stand(engine) as s:
            through = await ask(s.gateway.url)
            await s.record(4)
            assert [record.outcome for record in s.records.all[:2]] == [OutcomeKind.COMPLETED] * 2
            assert [record.output_tokens for record in s.records.all[:2]] == [3, 3]
        assert through["whole"] == direct["whole"] == ["hello back", 3]
        assert through["stream"] == direct["stream"] == [["one ", "two ", "three"], 3, "end_turn"]
        assert len(direct["errors"]) == 2
        assert through["errors"] == direct["errors"]

    run(test(), within=100)
