"""A public model name in front of the engine's own."""

from __future__ import annotations

import json

from tests.wire.client import request
from tests.wire.scripted import DONE, Incoming, finish, token
from tests.wire.stand import run, stand


def test_the_engine_is_asked_for_its_own_name_and_the_rest_is_as_it_came() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.completion()

    body = b'{"messages":[{"role":"user","content":"h\\u00e9 \\"model\\": \\"gpt-4\\""}], "model" : "gpt-4", "x": 1e3}'

    async def test() -> None:
        async with stand(script, aliases={"gpt-4": "smollm2-135m"}, lanes=[_LANE]) as s:
            reply = await s.ask(request(body))
            assert (reply.status, reply.json["model"]) == (200, "m")  # what the engine says of itself
            assert s.engine.requests[0].body == body.replace(b' : "gpt-4"', b' : "smollm2-135m"')
            record = await s.record()
            assert (record.model, record.requested_model) == ("smollm2-135m", "gpt-4")
            assert record.lane == "public"  # lanes see the name that the client used
            plain = body.replace(b' : "gpt-4"', b' : "smollm2-135m"')
            await s.ask(request(plain))
            record = await s.record(2)
            assert (record.model, record.requested_model, record.lane) == ("smollm2-135m", "", "default")

    run(test())


_LANE = {"name": "public", "match": {"model": "gpt-4"}}


def test_a_stream_under_an_alias_with_the_gateways_own_additions() -> None:
    async def script(incoming: Incoming) -> None:
        assert incoming.json["model"] == "engine"
        assert incoming.json["stream_options"] == {"include_usage": True}
        await incoming.sse(token(), finish(), DONE)
        await incoming.end()

    async def test() -> None:
        async with stand(script, aliases={"public": "engine"}) as s:
            body = json.dumps({"model": "public", "stream": True, "messages": []}).encode()
            reply = await s.ask(request(body))
            assert reply.body == token() + finish() + DONE

    run(test())


def test_aliases_are_replaced_by_a_reload() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.completion(incoming.json["model"])

    async def test() -> None:
        async with stand(script, aliases={"public": "one"}) as s:
            client = await s.client()
            body = b'{"model":"public"}'
            assert "one" in (await client.ask(request(body))).body.decode()
            config = s.gateway.config
            config.aliases = {"public": "two"}
            s.gateway.reconfigure(config)
            assert "two" in (await client.ask(request(body))).body.decode()

    run(test())
