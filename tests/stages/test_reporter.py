"""The reporter: bounded, counted, never in a request's way."""

import contextlib
import logging
import multiprocessing
import socket
import subprocess
import sys
import threading
import time

import pytest

from tailrace.stages import Reporter, ServiceRequest, handle, stage
from tailrace.stages.reporter import ATTEMPTS, BATCH
from tests.children import child_env
from tests.stages.receiver import receiving


def finished(outcome="completed"):
    request = ServiceRequest({}, service="rag")
    request.conclude()
    request.outcome = outcome
    return request


def test_requests_arrive_in_batches_and_flush_waits_for_them():
    with receiving() as receiver:
        reporter = Reporter(receiver.url)
        sent = [finished() for _ in range(2 * BATCH + 3)]
        for request in sent:
            assert reporter(request)
        assert reporter.flush(5)
        reporter.close()
        assert [span["spanId"] for span in receiver.roots()] == [request.span_id for request in sent]
        assert 3 <= len(receiver.posts) <= 5
        assert (reporter.sent, reporter.dropped) == (len(sent), 0)


def test_a_full_queue_drops_the_ordinary_first_and_says_how_many():
    with receiving() as receiver:
        receiver.delay_s = 0.3
        reporter = Reporter(receiver.url, capacity=4)
        reporter(finished())
        time.sleep(0.35)  # the first batch is on its way and holds the thread
        told = [reporter(finished()) for _ in range(6)]
        assert told == [True] * 4 + [False] * 2
        bad = finished("timed_out")
        assert reporter(bad)
        assert reporter.dropped == 3
        receiver.delay_s = 0
        assert reporter.flush(5)
        reporter.close()
        roots = receiver.roots()
        assert (len(roots), reporter.sent) == (5, 5)
        assert bad.span_id in {span["spanId"] for span in roots}
        resource = receiver.posts[-1][2]["resourceSpans"][0]["resource"]["attributes"]
        assert {"key": "tailrace.reports_dropped", "value": {"intValue": "3"}} in resource


def test_a_gateway_that_is_not_there_costs_a_request_nothing(caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    reporter = Reporter(f"http://127.0.0.1:{port}/v1/traces")
    began = time.perf_counter()
    for _ in range(100):
        reporter(finished())
    assert time.perf_counter() - began < 0.5
    with caplog.at_level(logging.WARNING):
        began = time.perf_counter()
        reporter.flush(0.3)
        reporter.close(0.1)
        assert time.perf_counter() - began < 2
    assert (reporter.sent, reporter.dropped) == (0, 100)
    assert not reporter(finished())
    assert reporter.dropped == 101


@pytest.mark.tier("ci")
def test_a_refusal_is_not_repeated_and_a_server_error_is():
    with receiving() as receiver:
        reporter = Reporter(receiver.url)
        for status, times in ((401, 1), (500, ATTEMPTS)):
            receiver.status = status
            before = reporter.dropped
            reporter(finished())
            began = time.perf_counter()
            while reporter.dropped == before and time.perf_counter() - began < 5:
                time.sleep(0.01)
            assert reporter.dropped == before + 1, times
        receiver.status = 200
        reporter(finished())
        assert reporter.flush(5)
        reporter.close()
        assert reporter.sent == 1


@pytest.mark.tier("ci")
def test_a_server_that_never_answers_does_not_hold_the_end_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        reporter = Reporter(f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces", timeout_s=1)
        reporter(finished())
        time.sleep(0.3)
        began = time.perf_counter()
        reporter.close(0.1)
        assert time.perf_counter() - began < 0.8
        assert reporter.dropped == 1
        assert reporter._thread is not None
        reporter._thread.join(5)


def _in_a_fork(reporter):
    reporter(finished())
    raise SystemExit(0 if reporter.flush(5) else 1)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_process_that_is_forked_off_reports_by_itself():
    with receiving() as receiver:
        reporter = Reporter(receiver.url)
        reporter(finished())
        assert reporter.flush(5)
        child = multiprocessing.get_context("fork").Process(target=_in_a_fork, args=(reporter,))
        child.start()
        child.join(10)
        assert child.exitcode == 0
        reporter.close()
        assert len(receiver.roots()) == 2


@pytest.mark.parametrize("url", ["", "127.0.0.1:9480", "ftp://x/", "http://"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ValueError, match="is no URL to report to"):
        Reporter(url)


def test_without_a_middleware_a_block_does_it():
    with receiving() as receiver:
        reporter = Reporter(receiver.url)
        with handle({"X-Request-Id": "mine"}, service="batch", path="/job", reporter=reporter) as request:
            request.status = 200
            with stage("preprocess.read"):
                pass
        with pytest.raises(LookupError), handle({}, service="batch", reporter=reporter), stage("model"):
            raise LookupError
        assert reporter.flush(5)
        reporter.close()
        good, bad = receiver.roots()
    assert (good["name"], good["attributes"]["tailrace.request_id"]) == ("batch /job", "mine")
    assert (bad["attributes"]["tailrace.reason"], bad["attributes"]["tailrace.died_in"]) == (
        "application_error",
        "model",
    )
    assert bad["status"] == {"code": 2, "message": "LookupError"}


@pytest.mark.tier("ci")
def test_the_end_of_the_process_waits_for_its_reports_but_not_for_long():
    code = (
        "import sys; from tailrace.stages import Reporter, handle\n"
        "with handle({}, service='job', reporter=Reporter(sys.argv[1])): pass\n"
    )
    with receiving() as receiver:
        subprocess.run([sys.executable, "-c", code, receiver.url], env=child_env(), check=True, timeout=15)
        assert len(receiver.roots()) == 1
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code, url], env=child_env(), check=True, timeout=15)
        assert time.perf_counter() - began < 5


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\n\r\n", b"no HTTP\x1b[31m at all" * 100 + b"\r\n"])
def test_an_answer_without_end_fills_neither_memory_nor_the_log(answer, caplog):
    written = []
    with socket.create_server(("127.0.0.1", 0)) as port:

        def talk():
            while True:
                try:
                    taken, _ = port.accept()
                except OSError:
                    return
                with taken, contextlib.suppress(OSError):
                    taken.recv(65536)
                    taken.sendall(answer)
                    for _ in range(2000):
                        taken.sendall(b"x" * 65536)
                        written.append(65536)

        threading.Thread(target=talk, daemon=True).start()
        reporter = Reporter(f"http://127.0.0.1:{port.getsockname()[1]}/v1/traces", timeout_s=5)
        reporter(finished())
        assert reporter.flush(5)
        reporter.close()
        port.shutdown(socket.SHUT_RDWR)
    assert reporter.sent + reporter.dropped == 1
    assert sum(written) < 64 << 20  # what the kernel takes, of 131 MB an attempt
    assert all(len(record.getMessage()) < 400 and record.getMessage().isprintable() for record in caplog.records)
