"""Small parts: refusals, traces, the ring of records, the lane desk, addresses."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.gateway.address import read_address
from tailrace.gateway.entrance import bind_error, split_address
from tailrace.gateway.history import FOLLOWER_BACKLOG, KEPT_RECORDS, KEPT_TIMELINES, History
from tailrace.gateway.lane_facts import LaneHeaders
from tailrace.gateway.lanes import LaneDesk
from tailrace.gateway.pool import UpstreamPool
from tailrace.gateway.refusal import Refusal, error_body, error_event
from tailrace.gateway.tls import engine_context
from tailrace.gateway.trace import continue_trace
from tailrace.gateway.upstream import _keep_alive_ns
from tailrace.govern.admission import Decision, DecisionKind
from tailrace.govern.lane import LanePolicy, RequestFacts
from tailrace.model.errors import InputError
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import Budgets
from tailrace.model.timeline import Timeline

REFUSAL = Refusal(
    status=504, message='it "stopped"\n', reason="idle_timeout", stage="decode", lane="chat", request_id="r1"
)


def test_a_refusal_is_openais_error_and_says_lane_position_and_wait() -> None:
    refusal = msgspec.structs.replace(REFUSAL, status=429, position=3, predicted_wait_ms=12.5, retry_after_s=2)
    error = json.loads(error_body("/v1/chat/completions", refusal))["error"]
    assert error == {
        "message": 'it "stopped"\n',
        "type": "rate_limit_error",
        "param": None,
        "code": "idle_timeout",
        "reason": "idle_timeout",
        "stage": "decode",
        "lane": "chat",
        "position": 3,
        "predicted_wait_ms": 12.5,
        "retry_after_s": 2,
        "request_id": "r1",
    }


ANTHROPIC = {
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "timeout_error",
    "api_error",
    "overloaded_error",
}


@pytest.mark.parametrize("status", [400, 403, 404, 405, 408, 413, 414, 417, 429, 431, 501, 502, 503, 504])
def test_anthropics_envelope_holds_only_types_that_its_sdk_knows(status: int) -> None:
    body = json.loads(error_body("/v1/messages", msgspec.structs.replace(REFUSAL, status=status)))
    assert (body["type"], body["request_id"]) == ("error", "r1")
    assert body["error"]["type"] in ANTHROPIC
    assert body["error"]["message"]


def test_tritons_clients_find_the_text_itself_under_error() -> None:
    body = json.loads(error_body("/v2/models/{model}/infer", REFUSAL))
    assert body["error"] == 'it "stopped"\n'
    assert (body["reason"], body["stage"], body["lane"], body["request_id"]) == ("idle_timeout", "decode", "chat", "r1")


def test_the_error_of_a_response_stream_is_numbered() -> None:
    data = json.loads(error_event("/v1/responses", REFUSAL, 7).partition(b"data: ")[2])
    assert (data["type"], data["sequence_number"], data["message"]) == ("error", 7, data["error"]["message"])


@pytest.mark.parametrize(
    "endpoint",
    [
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/responses",
        "/v1/audio/transcriptions",
        "/v2/models/{model}/generate_stream",
        "/generate",
    ],
)
def test_an_error_event_is_one_event_and_every_dialect_reads_it_as_an_error(endpoint: str) -> None:
    from tailrace.engines.registry import adapter
    from tailrace.measure.sse import SseFramer
    from tailrace.model.timeline import EventKind

    (event,) = SseFramer().feed(error_event(endpoint, REFUSAL))
    assert event.data is not None
    meaning = adapter("openai_compatible").dialect(endpoint).read(event.event, event.data)
    assert meaning.kind is EventKind.ERROR
    assert meaning.fault is not None
    assert "stopped" in meaning.fault.message


def test_a_sound_traceparent_is_continued() -> None:
    trace = continue_trace(b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01")
    assert (trace.trace_id, trace.parent_id) == ("a" * 32, "b" * 16)
    version, trace_id, span, flags = trace.header.decode().split("-")
    assert (version, trace_id, flags) == ("00", "a" * 32, "01")
    assert span != "b" * 16
    later = b"cc-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01-what-the-future-brings"
    assert continue_trace(later).trace_id == "a" * 32


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"nonsense",
        b"00-" + b"0" * 32 + b"-" + b"b" * 16 + b"-01",
        b"00-" + b"a" * 32 + b"-" + b"0" * 16 + b"-01",
        b"ff-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01",
        b"00-" + b"A" * 32 + b"-" + b"b" * 16 + b"-01",
        b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01-extra",
    ],
)
def test_an_unsound_one_starts_a_trace_that_is_not_sampled(header: bytes | None) -> None:
    trace = continue_trace(header)
    assert trace.parent_id == ""
    assert len(trace.trace_id) == 32
    assert trace.header.endswith(b"-00")


def _record(number: int, *, timeline: bool = False) -> RequestRecord:
    return RequestRecord(
        request_id=f"r{number}",
        client_request_id=f"c{number}",
        start_unix_ns=number,
        e2e_ns=1,
        unattributed_ns=1,
        stage_sources={"unattributed": "inferred(remainder)"},
        outcome=OutcomeKind.COMPLETED,
        timeline=Timeline(at_ns=[1], kind=[0], tokens=[1]) if timeline else None,
    )


def test_the_ring_forgets_the_oldest_everywhere() -> None:
    history = History()
    count = KEPT_RECORDS + 100
    for number in range(count):
        history.add(_record(number, timeline=True))
    assert history.total == count
    assert history.get("r0") is None
    newest = history.get(f"r{count - 1}")
    assert newest is not None
    assert newest.timeline is not None
    old = history.get("r100")
    assert old is not None
    assert old.timeline is None
    assert len(history._by_id) == len(history._records) == KEPT_RECORDS
    assert len(history._timelines) == KEPT_TIMELINES
    assert not history.reaches_back_to(50)
    assert history.reaches_back_to(200)
    assert history.get("c200") == history.get("r200")


def test_since_and_limit_give_the_newest_in_order() -> None:
    history = History()
    for number in range(10):
        history.add(_record(number))
    assert [r.start_unix_ns for r in history.since(None, 3)] == [7, 8, 9]
    assert [r.start_unix_ns for r in history.since(6, 100)] == [7, 8, 9]
    assert history.since(9, 100) == []
    assert history.reaches_back_to(-1)


def test_a_follower_that_does_not_read_is_told_what_it_missed() -> None:
    history = History()
    with history.follow() as follower:
        for number in range(FOLLOWER_BACKLOG + 7):
            history.add(_record(number))
        assert follower.missed == 7
    history.add(_record(0))
    assert follower.queue.qsize() == FOLLOWER_BACKLOG


class Waiter:
    def __init__(self, name: str, log: list[tuple[str, str]]) -> None:
        self.name, self.log = name, log

    def lane_admitted(self, now: int) -> None:
        self.log.append((self.name, "admitted"))

    def lane_refused(self, decision: Decision, now: int) -> None:
        self.log.append((self.name, "refused"))

    def lane_timed_out(self, now: int) -> None:
        self.log.append((self.name, "timed out"))


@given(st.lists(st.tuples(st.sampled_from(["arrive", "finish", "leave", "sweep"]), st.integers(0, 7)), max_size=60))
def test_the_desk_tells_each_waiter_exactly_once_or_never(steps: list[tuple[str, int]]) -> None:
    desk = LaneDesk([LanePolicy(running=2, queued=3, budgets=Budgets(queue_ns=10))])
    log: list[tuple[str, str]] = []
    inside: set[str] = set()
    waiting: set[str] = set()
    now = serial = 0
    for what, number in steps:
        now += 3
        told = len(log)
        if what == "arrive":
            serial += 1
            name = f"r{serial}"
            decision = desk.arrive(Waiter(name, log), RequestFacts(request_id=name), now)
            if decision.kind is DecisionKind.ADMIT:
                inside.add(name)
            elif decision.kind is DecisionKind.WAIT:
                waiting.add(name)
        elif what == "finish" and inside:
            name = sorted(inside)[number % len(inside)]
            inside.discard(name)
            desk.finish(name, now)
        elif what == "leave" and waiting:
            name = sorted(waiting)[number % len(waiting)]
            waiting.discard(name)
            desk.leave(name)
        elif what == "sweep":
            desk.sweep(now)
        for name, verdict in log[told:]:
            assert name in waiting
            waiting.discard(name)
            if verdict == "admitted":
                inside.add(name)
        lane = desk.snapshot(now)["default"]
        assert (lane["running"], lane["queued"]) == (len(inside), len(waiting))
        assert len(inside) <= 2
    assert len({name for name, _ in log}) == len(log)


def test_addresses() -> None:
    assert split_address("127.0.0.1:8080", "listen") == ("127.0.0.1", 8080)
    assert split_address("[::1]:0", "listen") == ("::1", 0)
    for wrong in ("8080", "host", "host:", ":80", "host:99999", "[::1", ""):
        with pytest.raises(InputError, match="HOST:PORT"):
            split_address(wrong, "listen")
    assert "Permission" in str(bind_error(PermissionError(13, "Permission denied"), "0.0.0.0:80", "--listen"))


def test_lane_headers_are_read_by_their_lower_case_name() -> None:
    headers = LaneHeaders({b"x-lane": b"batch"})
    assert headers.get("x-lane") == "batch"
    assert headers.get("x-other") is None
    assert dict(headers) == {"x-lane": "batch"}


def test_the_pool_reads_its_url() -> None:
    def pool(url: str) -> UpstreamPool:
        address = read_address(url)
        tls = engine_context(None) if address.tls else None
        return UpstreamPool(address, connect_timeout_ns=1, keep_alive_ns=1, tls=tls)

    assert (pool("http://h").address.port, pool("http://h").authority) == (80, b"h")
    assert (pool("https://h").address.port, pool("https://h").authority) == (443, b"h")
    assert (pool("unix:/run/E.sock").address.socket, pool("unix:/run/E.sock").authority) == (
        "/run/E.sock",
        b"localhost",
    )
    assert pool("http+unix://%2Frun%2FE.sock/team/v1").address.socket == "/run/E.sock"
    assert pool("http+unix://%2Frun%2FE.sock/team/v1").prefix == b"/team"
    assert pool("http://h:8000/").prefix == b""
    assert pool("http://h:8000/v1").prefix == b""
    assert pool("http://h:8000/team/v1/").prefix == b"/team"
    assert pool("http://[::1]:8000").authority == b"[::1]:8000"
    assert pool("https://h").tls is not None
    assert pool("http://b\u00fccher.example:8000").authority == b"xn--bcher-kva.example:8000"


def test_the_engines_keep_alive_is_undercut_by_a_second() -> None:
    assert _keep_alive_ns(b"timeout=5, max=100") == 4_000_000_000
    assert _keep_alive_ns(b"max=3, timeout=0") == 0
    assert _keep_alive_ns(b"max=100") is None
    assert _keep_alive_ns(b"timeout=soon") is None
    assert _keep_alive_ns(b"timeout=" + b"9" * 5000) is None
