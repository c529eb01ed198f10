"""The ASGI middleware behind a real server, with real clients, reporting to a real receiver."""

import asyncio
import contextlib
import json

import aiohttp
import pytest

from tailrace.stages import ServiceRequest, current_request, outgoing_headers, parse_server_timing, stage
from tailrace.stages.asgi import StagesMiddleware
from tests.stages.receiver import asgi_server, receiving

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def answer(send, *pieces, status=200, pause_s=0.0, kind=b"text/plain"):
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(pause_s)
    await send({"type": "http.response.body", "body": b""})


async def read(receive):
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


class Kept(list):
    """Collects finished requests."""

    def __call__(self, request: ServiceRequest) -> None:
        self.append(request)

    async def first(self, within=10):
        async with asyncio.timeout(within):
            while not self:  # noqa: ASYNC110  (polled: the middleware knows nothing of events)
                await asyncio.sleep(0.005)


def served(app, **request):
    """(status, headers, body, the finished request) of one call of the application."""
    kept = Kept()

    async def scene():
        async with asgi_server(StagesMiddleware(app, service="rag", report=kept)) as url:
            async with aiohttp.ClientSession() as session, session.post(f"{url}/ask", **request) as response:
                body = await response.read()
            await kept.first()
            return response.status, response.headers, body

    status, headers, body = asyncio.run(scene())
    assert len(kept) == 1
    return status, headers, body, kept[0]


def test_ids_come_in_go_on_and_come_back():
    seen = {}

    async def app(scope, receive, send):
        await read(receive)
        with stage("preprocess.retrieval"):
            await asyncio.sleep(0.002)
        seen.update(outgoing_headers())
        await answer(send, b"hello")

    given = {
        "x-request-id": "order-66",
        "traceparent": f"00-{TRACE}-{CALLER}-01",
        "x-session-id": "chat-9",
        "x-deadline-ms": "5000",
    }
    status, headers, body, request = served(app, headers=given, data=b"{}")
    assert (status, body, headers["x-request-id"]) == (200, b"hello", "order-66")
    timing = {one.name: one.duration_ns for one in parse_server_timing(headers["server-timing"])}
    assert set(timing) == {"preprocess", "preprocess.retrieval"}
    assert timing["preprocess"] >= 2_000_000
    assert (request.trace_id, request.parent_id, request.outcome) == (TRACE, CALLER, "completed")
    left = int(seen.pop("x-deadline-ms"))
    assert 0 < left <= 4998
    assert seen == {
        "x-request-id": "order-66",
        "traceparent": f"00-{TRACE}-{request.span_id}-01",
        "x-session-id": "chat-9",
    }


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"x-request-id": "two words", "traceparent": "nonsense", "x-deadline-ms": "-3"},
        {"x-request-id": "x" * 500, "traceparent": f"00-{'0' * 32}-{CALLER}-01", "x-deadline-ms": "1e3"},
        {"traceparent": f"ff-{TRACE}-{CALLER}-01", "x-session-id": "a b"},
    ],
)
def test_what_cannot_be_an_id_is_made_anew(given):
    async def app(scope, receive, send):
        await answer(send, json.dumps(outgoing_headers()).encode())

    _, headers, body, request = served(app, headers=given)
    sent = json.loads(body)
    assert set(sent) == {"x-request-id", "traceparent"}
    assert headers["x-request-id"] == sent["x-request-id"] == request.request_id
    assert len(request.request_id) == 24
    assert sent["traceparent"] == f"00-{request.trace_id}-{request.span_id}-00"
    assert request.trace_id != TRACE


def test_a_stream_passes_as_it_comes_and_the_span_lasts_to_its_end():
    async def app(scope, receive, send):
        await read(receive)
        with stage("model"):
            await answer(send, b"one ", b"two ", b"three", pause_s=0.05)

    kept, gaps = Kept(), []

    async def scene():
        loop = asyncio.get_running_loop()
        async with asgi_server(StagesMiddleware(app, service="rag", report=kept)) as url:
            async with aiohttp.ClientSession() as session, session.post(url, data=b"q") as response:
                last = loop.time()
                async for _ in response.content.iter_any():
                    gaps.append(loop.time() - last)
                    last = loop.time()
            await kept.first()

    asyncio.run(scene())
    (request,) = kept
    assert len(gaps) >= 3
    assert max(gaps[1:3]) > 0.02
    assert request.bodies == 3
    # The first piece left 150 ms before the end, and both stamps know it.
    assert request.first_body_ns - request.received_ns < 0.5 * (request.end_ns - request.received_ns)
    assert request.end_ns - request.first_body_ns > 0.14e9
    assert request.collector.durations()["model"] >= 0.14e9


@pytest.mark.parametrize("looks", [False, True])
def test_a_client_that_leaves_is_seen_whether_or_not_the_application_looks(looks):
    async def app(scope, receive, send):
        await read(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        with stage("model"):
            for _ in range(100):
                await send({"type": "http.response.body", "body": b"token ", "more_body": True})
                if looks:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.01):
                            message = await receive()
                            assert message["type"] == "http.disconnect"
                            return
                await asyncio.sleep(0.01)

    kept = Kept()

    async def scene():
        async with asgi_server(StagesMiddleware(app, service="rag", report=kept)) as url:
            async with aiohttp.ClientSession() as session, session.post(url, data=b"q") as response:
                await response.content.readany()
                response.close()
            await kept.first()

    asyncio.run(scene())
    (request,) = kept
    assert (request.outcome, request.reason, request.died_in) == ("cancelled", "client_disconnect", "model")


def test_a_budget_that_nobody_handles_is_answered_with_504():
    async def app(scope, receive, send):
        with stage("preprocess.retrieval", budget="20ms"):
            await asyncio.sleep(10)

    status, headers, body, request = served(app)
    assert status == 504
    assert json.loads(body)["error"] == {
        "type": "stage_timeout",
        "message": "stage preprocess.retrieval is over its budget of 0.02 s",
        "stage": "preprocess.retrieval",
    }
    assert headers["x-request-id"] == request.request_id
    assert "preprocess.retrieval" in headers["server-timing"]
    assert (request.outcome, request.reason) == ("timed_out", "stage_timeout")
    assert (request.died_in, request.budget, request.status) == ("preprocess.retrieval", "preprocess.retrieval", 504)


@pytest.mark.parametrize(("status", "outcome"), [(503, "timed_out"), (200, "completed")])
def test_a_budget_that_the_application_handles_is_judged_by_its_answer(status, outcome):
    async def app(scope, receive, send):
        try:
            with stage("preprocess.retrieval", budget="20ms"):
                await asyncio.sleep(10)
        except TimeoutError:
            await answer(send, b"without documents", status=status)

    got, _, _, request = served(app)
    assert (got, request.outcome) == (status, outcome)
    assert [span.over_budget for span in request.collector.spans] == [True]


def test_the_clients_deadline_ends_the_request_and_names_where():
    async def app(scope, receive, send):
        with stage("preprocess"), stage("preprocess.retrieval"):
            await asyncio.sleep(10)

    status, _, body, request = served(app, headers={"x-deadline-ms": "40"})
    assert status == 504
    assert json.loads(body)["error"]["type"] == "deadline"
    assert (request.outcome, request.reason) == ("cancelled", "deadline")
    assert (request.died_in, request.budget) == ("preprocess.retrieval", "deadline")


def test_an_exception_is_the_applications_own_and_still_the_servers_to_answer():
    async def app(scope, receive, send):
        with stage("postprocess.safety"):
            raise LookupError("secret text")

    status, _, _, request = served(app)
    assert status == 500
    assert (request.outcome, request.reason, request.died_in) == ("failed", "application_error", "postprocess.safety")
    assert request.error == "LookupError"


@pytest.mark.parametrize(
    ("status", "reason"), [(400, "bad_request"), (401, "unauthorized"), (429, "rate_limited"), (422, "bad_request")]
)
def test_a_refusal_is_a_refusal(status, reason):
    async def app(scope, receive, send):
        await answer(send, b"no", status=status)

    _, _, _, request = served(app)
    assert (request.outcome, request.reason) == ("rejected", reason)


def test_requests_beside_each_other_keep_their_own_stages_and_ids():
    async def app(scope, receive, send):
        mine = current_request().request_id
        with stage(f"preprocess.part_{mine}"):
            await asyncio.sleep(0.01)
        await answer(send, outgoing_headers()["x-request-id"].encode())

    kept = Kept()

    async def scene():
        made = StagesMiddleware(app, service="rag", report=kept)
        async with asgi_server(made) as url, aiohttp.ClientSession() as session:

            async def ask(name):
                async with session.get(url, headers={"x-request-id": name}) as response:
                    return await response.text()

            return await asyncio.gather(*(ask(f"r{number}") for number in range(20)))

    assert asyncio.run(scene()) == [f"r{number}" for number in range(20)]
    assert current_request() is None
    for request in kept:
        assert [span.name for span in request.collector.spans] == [f"preprocess.part_{request.request_id}"]


def test_it_is_reported_and_flushed_when_the_server_stops():
    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        with stage("preprocess.retrieval"):
            await asyncio.sleep(0.001)
        with stage("postprocess"), stage("postprocess.safety"):
            pass
        await answer(send, b"a", b"b")

    with receiving() as receiver:

        async def scene():
            made = StagesMiddleware(app, service="rag", report=receiver.url, token="secret")
            async with (
                asgi_server(made, lifespan="on") as url,
                aiohttp.ClientSession() as session,
                session.get(f"{url}/ask") as response,
            ):
                assert await response.text() == "ab"
            return made.report

        reporter = asyncio.run(scene())
        assert (reporter.sent, reporter.dropped) == (1, 0)
        reporter.close()
        (path, headers, body) = receiver.posts[0]
        assert (path, headers["authorization"]) == ("/v1/traces", "Bearer secret")
        root, *stages = receiver.spans()
    assert body["resourceSpans"][0]["resource"]["attributes"] == [
        {"key": "service.name", "value": {"stringValue": "rag"}}
    ]
    named = {span["attributes"]["tailrace.stage"]: span for span in stages}
    assert set(named) == {"preprocess.retrieval", "postprocess", "postprocess.safety"}
    assert named["postprocess"]["parentSpanId"] == root["spanId"]
    assert named["postprocess.safety"]["parentSpanId"] == named["postprocess"]["spanId"]
    told = root["attributes"]
    assert (told["tailrace.outcome"], told["tailrace.stages"], told["tailrace.stream"]) == ("completed", 3, True)
    assert 0 < told["tailrace.first_body_ns"] <= int(root["endTimeUnixNano"]) - int(root["startTimeUnixNano"])
    for span in stages:
        assert int(root["startTimeUnixNano"]) <= int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
