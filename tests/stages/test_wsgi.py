"""The WSGI middleware behind a real server."""

import threading
import urllib.error
import urllib.request
import wsgiref.simple_server

import pytest

from tailrace.stages import StageTimeout, outgoing_headers, remaining, stage
from tailrace.stages.wsgi import StagesMiddleware


class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *_):
        pass

    def get_stderr(self):
        import io

        return io.StringIO()


def served(app, headers=()):
    """(status, headers, body, finished requests) of one GET."""
    kept = []
    server = wsgiref.simple_server.make_server(
        "127.0.0.1", 0, StagesMiddleware(app, service="rag", report=kept.append), handler_class=Quiet
    )
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/ask", headers=dict(headers))
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                return response.status, response.headers, response.read(), kept
        except urllib.error.HTTPError as error:
            with error:
                return error.status, error.headers, error.read(), kept
    finally:
        thread.join()
        server.server_close()


def test_a_request_is_handled_and_its_span_lasts_to_the_end_of_the_answer():
    def app(environ, start):
        with stage("preprocess.retrieval", budget="5s") as retrieval:
            left = retrieval.remaining()
        start("200 OK", [("content-type", "text/plain")])
        yield outgoing_headers()["x-request-id"].encode()
        with stage("model"):
            assert remaining() is not None
            yield b"!" if 0 < left <= 0.25 else b"?"

    status, headers, body, (request,) = served(app, {"x-request-id": "mine", "x-deadline-ms": "250"})
    assert (status, body, headers["x-request-id"]) == (200, b"mine!", "mine")
    assert "preprocess.retrieval" in headers["server-timing"]
    assert (request.outcome, request.bodies) == ("completed", 2)
    assert [span.name for span in request.collector.spans] == ["preprocess.retrieval", "model"]


def test_an_application_that_raises():
    def app(environ, start):
        with stage("preprocess.retrieval", budget=0.001):
            import time

            time.sleep(0.01)
            raise TimeoutError("the index")

    status, _, _, (request,) = served(app)
    assert status == 500
    assert (request.outcome, request.reason, request.died_in) == (
        "timed_out",
        "stage_timeout",
        "preprocess.retrieval",
    )


def test_an_answer_that_the_server_gives_up_is_a_client_that_left():
    kept = []

    def app(environ, start):
        start("200 OK", [])
        yield b"one"
        yield b"two"

    answer = StagesMiddleware(app, service="rag", report=kept.append)({"PATH_INFO": "/"}, lambda *_: None)
    assert next(iter(answer)) == b"one"
    answer.close()
    answer.close()
    (request,) = kept
    assert (request.outcome, request.reason) == ("cancelled", "client_disconnect")


def test_an_answer_that_breaks_half_way():
    kept = []

    def app(environ, start):
        start("200 OK", [])
        yield b"one"
        raise StageTimeout("model", 1)

    answer = StagesMiddleware(app, service="rag", report=kept.append)({}, lambda *_: None)
    assert next(answer) == b"one"
    with pytest.raises(StageTimeout):
        next(answer)
    answer.close()
    assert [request.outcome for request in kept] == ["timed_out"]
