"""Prometheus and the admin port on several engines, one of which fails and one of which is taken out."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from pathlib import Path

from tailrace.app.fleet_views import merged
from tailrace.app.gateway_process import FLUSH_S, GatewayProcess
from tailrace.gateway.config import config_from, to_plain
from tests.wire.client import RawClient, chat_body, request
from tests.wire.scripted import Incoming, ScriptedEngine
from tests.wire.stand import run


async def _fails(incoming: Incoming) -> None:
    await incoming.reply({"error": {"message": "no"}}, 500)


async def _serves(incoming: Incoming) -> None:
    await incoming.completion()


def test_what_is_shown_of_backends(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            engines = [await stack.enter_async_context(ScriptedEngine(script)) for script in (_fails, _serves, _serves)]
            config = config_from(
                {
                    "listen": "127.0.0.1:0",
                    "backends": [{"name": name, "url": one.url} for name, one in zip("abc", engines, strict=True)],
                    "scrape": {"period": "60s"},
                    "records": {"dir": str(tmp_path)},
                }
            )
            process = GatewayProcess(config)
            gateway = process.gateway

            def shown(name: str) -> float | None:
                found = re.search(rf"^{re.escape(name)} (\S+)$", process.metrics.render()[0].decode(), re.MULTILINE)
                return None if found is None else float(found[1])

            await gateway.start()
            try:
                client = await RawClient.connect(gateway.url)
                failed = 0
                while not gateway.backends.named("a").standing.breaker.opened:
                    reply = await client.ask(request(chat_body(stream=False), headers={"X-Session-Id": f"s{failed}"}))
                    failed += 1
                    assert reply.status in (200, 500)
                assert shown('tailrace_backend_breaker_state{backend="a"}') in (1, 2)
                assert shown('tailrace_backend_breaker_state{backend="b"}') == 0
                assert shown('tailrace_backend_breaker_opened_total{backend="a"}') == 1
                assert shown('tailrace_backend_retries_total{backend="a"}') == len(engines[0].requests) - 2
                assert shown("tailrace_retries_denied_total") == 2  # five failures, three retries in reserve
                assert shown("tailrace_retry_budget_left") == 0
                assert shown('tailrace_backend_outstanding_requests{backend="b"}') == 0
                assert shown('tailrace_backend_outstanding_tokens{backend="b"}') == 0
                met = shown('tailrace_affinity_requests_total{result="met"}')
                assert met + shown('tailrace_affinity_requests_total{result="moved"}') == failed + 3
                plain = to_plain(config)
                del plain["backends"][0]
                gateway.reconfigure(config_from(plain))
                assert shown('tailrace_backend_breaker_state{backend="a"}') is None
                assert shown('tailrace_backend_up{backend="a"}') is None
                client.close()
            finally:
                await gateway.close(0.2)
                process.writer.close(FLUSH_S)

    run(test())


def test_several_workers_views_become_one() -> None:
    breaker = {"state": "closed", "code": 0, "failures_in_a_row": 0, "opened_total": 1}
    worse = {"state": "open", "code": 2, "failures_in_a_row": 3, "opened_total": 4}
    one = {
        "backends": {"a": {"breaker": breaker, "retries_total": 2, "ejected": 0}},
        "balance": {"skew": {"skew_cv": 0.2}},
    }
    two = {
        "backends": {"a": {"breaker": worse, "retries_total": 5, "ejected": 1}},
        "balance": {"skew": {"skew_cv": 0.1}},
    }
    both = merged([one, two])
    assert both["backends"]["a"]["retries_total"] == 7
    assert both["backends"]["a"]["ejected"] == 1
    assert both["backends"]["a"]["breaker"]["code"] == 2
    assert both["backends"]["a"]["breaker"]["opened_total"] == 5
    assert both["balance"]["skew"]["skew_cv"] == 0.2
