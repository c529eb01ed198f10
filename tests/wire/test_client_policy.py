"""The published client policy, on the real OpenAI SDK, against engines that are late, stall, refuse and break off."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.scripted import SSE_HEAD, Incoming, event, token
from tests.wire.stand import Stand, run, stand

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.needs("openai")

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "openai_client.py"
_spec = importlib.util.spec_from_file_location("openai_client", EXAMPLE)
assert _spec is not None
assert _spec.loader is not None
policy_module = importlib.util.module_from_spec(_spec)
sys.modules["openai_client"] = policy_module  # its dataclass looks itself up
_spec.loader.exec_module(policy_module)
Policy, StreamBrokenError, ask = policy_module.Policy, policy_module.StreamBrokenError, policy_module.ask

REQUEST: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
QUICK = Policy(first_token=0.5, idle=0.4, total=8.0, backoff=0.05)
Script = Callable[[Incoming], Awaitable[None]]


def _with_policy(script: Script, test: Callable[[Stand, Any], Coroutine[Any, Any, None]], **config: Any) -> None:
    async def both() -> None:
        async with stand(script, **config) as s, openai.AsyncOpenAI(base_url=s.gateway.url + "/v1", api_key="k") as sdk:
            await test(s, sdk)

    run(both())


async def _text(sdk: Any, policy: Any = QUICK) -> str:
    return "".join([piece async for piece in ask(sdk, policy, **REQUEST)])


def test_the_published_numbers() -> None:
    assert (Policy().first_token, Policy().idle, Policy().total, Policy().attempts) == (5.0, 3.0, 60.0, 4)


def test_a_sound_answer_is_asked_for_once_and_with_its_deadline() -> None:
    seen: list[str] = []

    async def script(incoming: Incoming) -> None:
        seen.append(incoming.headers.get("x-deadline-ms", ""))
        await incoming.stream(5)

    async def test(s: Stand, sdk: Any) -> None:
        assert await _text(sdk) == "hi" * 5
        assert (await s.record()).outcome is OutcomeKind.COMPLETED
        assert len(seen) == 1

    _with_policy(script, test)


def test_a_first_token_that_is_late_is_given_up_and_tried_again() -> None:
    tries: Counter[str] = Counter()

    async def script(incoming: Incoming) -> None:
        tries["all"] += 1
        if tries["all"] == 1:
            await incoming.send(SSE_HEAD)
            role = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
            for _ in range(100):  # alive, and no token
                await incoming.chunks(b": ping\n\n", role)
                await asyncio.sleep(0.05)
            return
        await incoming.stream(3)

    async def test(s: Stand, sdk: Any) -> None:
        began = time.monotonic()
        assert await _text(sdk) == "hi" * 3
        assert 0.5 <= time.monotonic() - began < 3
        assert tries["all"] == 2
        records = (await s.record(2), *s.records.all)
        # The engine was told at once that the first one is not wanted any more.
        assert records[1].reason is Reason.CLIENT_DISCONNECT

    _with_policy(script, test)


def test_the_gateways_own_timeout_says_why_and_is_tried_again() -> None:
    tries: Counter[str] = Counter()

    async def script(incoming: Incoming) -> None:
        tries["all"] += 1
        if tries["all"] == 1:
            await incoming.until_gone()
            return
        await incoming.stream(3)

    async def test(s: Stand, sdk: Any) -> None:
        assert await _text(sdk, Policy(first_token=5.0, backoff=0.05)) == "hi" * 3
        await s.record(2)
        assert s.records.all[0].reason is Reason.FIRST_TOKEN_TIMEOUT

    budgets = {"queue": "1s", "first_token": "200ms", "idle": "1s"}
    _with_policy(script, test, budgets=budgets)


@pytest.mark.parametrize("gateway_idle", ["200ms", "5s"])
def test_a_stall_after_the_first_token_is_not_tried_again(gateway_idle: str) -> None:
    """Whoever notices first, the gateway with its error event or the client."""

    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), token())
        await incoming.until_gone()

    async def test(s: Stand, sdk: Any) -> None:
        with pytest.raises(StreamBrokenError) as caught:
            await _text(sdk)
        assert caught.value.text == "hihi"
        record = await s.record()  # one request, not two
        if gateway_idle == "200ms":
            assert record.reason is Reason.IDLE_TIMEOUT
            assert "idle budget of 0.2 s is over in stage decode" in str(caught.value)
        else:
            assert record.reason is Reason.CLIENT_DISCONNECT
            assert isinstance(caught.value.__cause__, TimeoutError)

    _with_policy(script, test, budgets={"idle": gateway_idle})


def test_retry_after_is_obeyed() -> None:
    at: list[float] = []

    async def script(incoming: Incoming) -> None:
        at.append(time.monotonic())
        if len(at) == 1:
            await incoming.reply({"error": {"message": "busy"}}, 429, extra=b"Retry-After: 1\r\n")
        else:
            await incoming.stream(2)

    async def test(s: Stand, sdk: Any) -> None:
        assert await _text(sdk) == "hihi"
        assert 1.0 <= at[1] - at[0] < 2.5
        assert (await s.record(2)).outcome is OutcomeKind.COMPLETED

    _with_policy(script, test)


def test_a_retry_after_that_does_not_fit_is_not_waited_for() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reply({"error": {"message": "busy"}}, 429, extra=b"Retry-After: 600\r\n")

    async def test(s: Stand, sdk: Any) -> None:
        began = time.monotonic()
        with pytest.raises(openai.RateLimitError):
            await _text(sdk)
        assert time.monotonic() - began < 2
        await s.record(1)

    _with_policy(script, test)


def test_it_gives_up_after_its_attempts() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reply({"error": {"message": "broken"}}, 503)

    async def test(s: Stand, sdk: Any) -> None:
        with pytest.raises(openai.InternalServerError):
            await _text(sdk)
        await s.record(4)

    _with_policy(script, test)


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_the_clients_own_faults_are_not_tried_again(status: int) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reply({"error": {"message": "no"}}, status)

    async def test(s: Stand, sdk: Any) -> None:
        with pytest.raises(openai.APIStatusError):
            await _text(sdk)
        await s.record(1)

    _with_policy(script, test)


@pytest.mark.parametrize("tokens", [0, 3])
def test_a_cut_is_tried_again_before_the_first_token_and_never_after(tokens: int) -> None:
    tries: Counter[str] = Counter()

    async def script(incoming: Incoming) -> None:
        tries["all"] += 1
        if tries["all"] == 1:
            await incoming.sse(*[token()] * tokens)
            await asyncio.sleep(0.05)
            incoming.abort()
            return
        await incoming.stream(2)

    async def test(s: Stand, sdk: Any) -> None:
        if tokens:
            with pytest.raises(StreamBrokenError) as caught:
                await _text(sdk)
            assert caught.value.text == "hi" * tokens
            assert (await s.record()).reason is Reason.STREAM_CUT
        else:
            assert await _text(sdk) == "hihi"
            await s.record(2)

    _with_policy(script, test)


def test_jitter_is_full_and_backoff_doubles_up_to_its_bound() -> None:
    policy = Policy(backoff=1.0, longest_backoff=4.0)
    for attempt, longest in ((1, 1.0), (2, 2.0), (3, 4.0), (9, 4.0)):
        pauses = [policy.pause(attempt, 0.0) for _ in range(400)]
        assert 0 <= min(pauses) < 0.2 * longest
        assert 0.8 * longest < max(pauses) <= longest
        assert min(policy.pause(attempt, 7.0) for _ in range(50)) >= 7.0


def test_without_a_gateway_an_answer_without_an_end_is_no_answer() -> None:
    """Straight to an engine that ends its stream cleanly in the middle: nobody says so but the missing reason."""

    async def script(incoming: Incoming) -> None:
        await incoming.sse(token())
        await incoming.end()

    async def both() -> None:
        async with stand(script) as s, openai.AsyncOpenAI(base_url=s.engine.url + "/v1", api_key="k") as sdk:
            with pytest.raises(StreamBrokenError, match="without a finish reason"):
                await _text(sdk)

    run(both())
