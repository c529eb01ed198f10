"""An engine's counts beside ours, on a live engine whose clients leave: abort counter 0, survivors only."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from tailrace.app.gateway_process import FLUSH_S, GatewayProcess
from tailrace.engines.beside import counts_markdown, counts_table
from tailrace.gateway.config import config_from
from tailrace.gateway.served import OneGateway
from tailrace.model.thresholds import S
from tests.simserve.serving import MODEL, serving
from tests.wire.client import RawClient, chat_body, request
from tests.wire.stand import run

COMPLETED, LEFT = 6, 3


def test_survivor_bias_on_a_live_engine(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(time_scale=1.0) as (_, session):
            config = config_from(
                {
                    "listen": "127.0.0.1:0",
                    "backends": [{"url": str(session._base_url).rstrip("/"), "model": MODEL}],
                    "scrape": {"period": "50ms"},
                    "records": {"dir": str(tmp_path), "sample": 1.0},
                }
            )
            process = GatewayProcess(config)
            gateway = process.gateway
            await gateway.start()
            try:
                await gateway.backends.first.engine.watch.first_answer()
                before = await (await session.get("/metrics")).text()

                async def ask(tokens: int, *, leave: bool) -> None:
                    client = await RawClient.connect(gateway.url)
                    try:
                        body = chat_body(model=MODEL, max_tokens=tokens, ignore_eos=True)
                        await client.send(request(body))
                        if leave:
                            await client.head()
                            await client.next_chunk()
                            client.abort()
                        else:
                            assert (await client.reply()).status == 200
                    finally:
                        client.close()

                leaving = (ask(2000, leave=True) for _ in range(LEFT))
                await asyncio.gather(*(ask(12, leave=False) for _ in range(COMPLETED)), *leaving)
                served = OneGateway(gateway)
                async with asyncio.timeout(5):
                    while True:
                        (backend,) = await served.backends(60 * S)
                        counts = backend.get("counts", {"gateway": {"sent": 0}})
                        if counts["gateway"]["sent"] == COMPLETED + LEFT and counts["engine"]["finished"] == COMPLETED:
                            break
                        await asyncio.sleep(0.05)
                assert counts["engine"]["aborted"] == 0, "vLLM's form: a client that left is counted nowhere"
                assert counts["gateway"]["completed"] == COMPLETED
                assert counts["gateway"]["cancelled/client_disconnect"] == LEFT
                assert any("survivor bias" in why for why in counts["why"])
                assert msgspec.json.encode(backend)
                signals = backend["window"]["signals"]
                assert signals["e2e"]["n"] == COMPLETED, "its histograms do not have the others either"
                assert signals["ttft"]["n"] == COMPLETED + LEFT, "but those that got a first token are in this one"
                assert signals["ttft"]["mean_ms"] > 0
                assert "--custom-histogram-buckets" in signals["queue"]["remedy"]

                after = await (await session.get("/metrics")).text()
                table = counts_markdown(
                    counts_table(before, after, gateway.history.since(None, 100), engine="simulated")
                )
                assert f"| finished | {COMPLETED} | {COMPLETED} |" in table
                assert f"| aborted (client left, cut by a budget) | 0 | {LEFT} |" in table
            finally:
                await gateway.close(0.2)
                await asyncio.to_thread(process.writer.close, FLUSH_S)

    run(test())
