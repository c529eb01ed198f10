"""Token limits as a scrape and the health view show them, with an engine that counts for itself."""

from __future__ import annotations

from pathlib import Path

from tailrace.app.fleet_views import merged
from tailrace.app.gateway_process import FLUSH_S, GatewayProcess
from tailrace.gateway.config import config_from
from tests.simserve.serving import MODEL, serving
from tests.wire.client import RawClient, chat_body, request
from tests.wire.stand import run


def test_errors_cuts_and_caps_are_counted(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(time_scale=50.0) as (_, session):
            config = config_from(
                {
                    "listen": "127.0.0.1:0",
                    "backends": [{"url": str(session._base_url).rstrip("/"), "model": MODEL}],
                    "lanes": [{"name": "default", "tokens": {"max_prompt": 400, "over": "truncate", "max_output": 4}}],
                    "records": {"dir": str(tmp_path)},
                }
            )
            process = GatewayProcess(config)
            gateway = process.gateway
            await gateway.start()
            client = await RawClient.connect(gateway.url)
            try:
                for words in (10, 15, 20, 40, 2000, 3000):
                    text = "some ordinary words " * words
                    body = chat_body(model=MODEL, messages=[{"role": "user", "content": text}], max_tokens=9)
                    assert (await client.ask(request(body))).status == 200
                gateway.flush_records()
                kept = [record for record in gateway.history.since(None, 100) if record.truncated_from is not None]
                assert len(kept) == 2
                assert all(record.prompt_tokens_source == "usage" for record in kept)
                text = process.metrics.render()[0].decode()
            finally:
                client.close()
                await gateway.close(0)
                process.writer.close(FLUSH_S)
            labels = f'{{lane="default",model="{MODEL}"}}'
            assert f"tailrace_prompts_truncated_total{labels} 2.0" in text
            assert f"tailrace_outputs_capped_total{labels} 6.0" in text
            assert f'tailrace_token_counts_compared_total{{model="{MODEL}",source="estimate"}} 6.0' in text
            assert f'tailrace_token_count_error_ratio{{model="{MODEL}",quantile="0.95",source="estimate"}}' in text

            view = gateway.live()["tokens"]
            assert view["models"][MODEL]["n"] == 6
            both = merged([view, view])
            assert both["models"][MODEL]["n"] == 12
            assert both["models"][MODEL]["error_p95"] == view["models"][MODEL]["error_p95"]

    run(test())
