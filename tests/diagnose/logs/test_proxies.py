# ruff: noqa: E501  (lines of logs are as long as they are)
"""Balancers and gateways that say where a request's time went: read, judged, and what is left with less of it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tailrace.diagnose.causes.gateway.conn_pool_cap import ConnPoolCap
from tailrace.diagnose.causes.gateway.network import Network
from tailrace.diagnose.causes.gateway.self_bottleneck import SelfBottleneck
from tailrace.diagnose.causes.gateway.slow_reader import SlowReader
from tailrace.diagnose.causes.gateway.upstream_timeout import UpstreamTimeout
from tailrace.diagnose.readers.logs.log import read_log_text
from tests.diagnose.evidence_texts import asked, said


def haproxy(
    second: int,
    *,
    waited: int = 9000,
    header: int = 200,
    conns: int = 32,
    queued: int = 150,
    status: int = 200,
    state: str = "----",
    connect: int = 1,
    head: str = "Mar  4 11:20:00 lb1 haproxy[2211]: ",
) -> str:
    took = waited + max(header, 0) + 700
    return f'{head}10.1.0.7:40{second:03d} [04/Mar/2026:11:20:{second % 60:02d}.104] fe_llm bk_vllm/vllm1 0/{waited}/{connect}/{header}/{took} {status} 2100 - - {state} 231/230/64/{conns}/0 0/{queued} "POST /v1/completions HTTP/1.1"'


def alb(second: int, *, took: float = 12.5, status: int = 200, answered: bool = True) -> str:
    begin, end = (
        f"2026-04-08T10:00:{second:02d}.000000Z",
        f"2026-04-08T10:{1 if not answered else 0:02d}:{second:02d}.{0 if not answered else 500000:06d}Z",
    )
    parts = f"0.000 {took:.3f} 0.000" if answered else "0.000 -1 -1"
    return f'h2 {end} app/llm/50dc6c 198.51.100.7:40{second:03d} 10.0.1.25:8000 {parts} {status} {status if answered else "-"} 912 283 "POST https://llm.example.com:443/v1/completions HTTP/2.0" "python-httpx/0.27" ECDHE TLSv1.2 arn:aws:x "Root=1-2" "llm.example.com" "arn:aws:acm" 1 {begin} "forward" "-" "-" "10.0.1.25:8000" "-" "-" "-"'


def access(text: str):
    return next(iter(read_log_text(text, "proxy.log").table("access")))


def test_haproxys_timers_and_counts():
    rows = access("\n".join([haproxy(1), haproxy(2, status=504, header=-1, state="sH--"), haproxy(3, head="")]))
    assert list(rows.numbers("hop_queue")) == [9000.0] * 3
    assert list(rows.numbers("e2e")) == [9900.0, 9700.0, 9900.0]
    assert list(rows.numbers("server_conns")) == [32.0] * 3
    assert rows.texts("flags") == ["", "UT", ""]
    assert rows.numbers("upstream_bytes")[1] == 0.0
    assert rows.texts("path")[0] == "/v1/completions"


def test_a_load_balancer_that_gives_up_before_its_target_answers():
    text = "\n".join([alb(at) for at in range(20)] + [alb(at, status=504, answered=False) for at in range(20, 24)])
    rows = access(text)
    assert list(rows.numbers("e2e")[:20]) == [12500.0] * 20
    assert list(rows.numbers("e2e")[20:]) == [60000.0] * 4
    finding = UpstreamTimeout().observe(read_log_text(text, "alb.log"))
    assert finding is not None
    assert finding.level == "consistent"
    assert "60 s" in finding.statement
    assert UpstreamTimeout().observe(read_log_text("\n".join(alb(at) for at in range(24)), "alb.log")) is None


def test_a_queue_for_a_connection_to_the_server():
    finding = ConnPoolCap().observe(read_log_text("\n".join(haproxy(at) for at in range(20)), "haproxy.log"))
    assert finding is not None
    assert finding.level == "suspected"
    assert "flat at 32" in finding.statement
    assert "waiting requests of the engine" in finding.missing[0]


def test_a_server_that_is_slow_itself_holds_nobody_in_the_balancer():
    text = "\n".join(haproxy(at, waited=20, header=9000) for at in range(20))
    assert ConnPoolCap().observe(read_log_text(text, "haproxy.log")) is None
    few = "\n".join(haproxy(at) for at in range(5))
    assert ConnPoolCap().observe(read_log_text(few, "haproxy.log")) is None


def kong(at: int, *, own: int = 4700, theirs: int = 300) -> str:
    return json.dumps(
        {
            "started_at": 1767225600000 + at * 1000,
            "request": {"method": "POST", "uri": "/v1/embeddings"},
            "response": {"status": 200, "size": 8400},
            "latencies": {"request": own + theirs, "kong": own, "proxy": theirs},
        }
    )


def litellm(at: int, *, own: int = 1450, whole: int = 1900) -> str:
    return json.dumps(
        {
            "message": "proxy call",
            "timestamp": f"2026-06-01T12:00:{at:02d}",
            "status_code": 200,
            "x-litellm-response-duration-ms": whole,
            "x-litellm-overhead-duration-ms": own,
        }
    )


@pytest.mark.parametrize("line", [kong, litellm])
def test_a_gateway_that_is_slow_by_its_own_word(line):
    finding = SelfBottleneck().observe(read_log_text("\n".join(line(at) for at in range(20)), "gateway.log"))
    assert finding is not None
    assert finding.level == "suspected"
    assert "overhead" in finding.statement


@pytest.mark.parametrize(
    "text", ["\n".join(kong(at, own=12) for at in range(20)), "\n".join(kong(at) for at in range(6))]
)
def test_a_quick_gateway_and_too_few_lines_lead_to_nothing(text):
    assert SelfBottleneck().observe(read_log_text(text, "gateway.log")) is None


def nginx(
    at: int,
    *,
    took: float,
    upstream: float,
    size: int = 210_000,
    connect: str = "0.001",
    header: str = "0.310",
    status: int = 200,
) -> str:
    return f'100.64.2.9 - - [11/Mar/2026:21:00:{at:02d} +0000] "POST /v1/chat/completions HTTP/1.1" {status} {size} "-" "app" rt={took:.3f} uct="{connect}" uht="{header}" urt="{upstream:.3f}"'


def slow_and_quick(**slow: object) -> str:
    return "\n".join(
        nginx(at, took=40.0, upstream=3.9, **slow) if at % 5 == 0 else nginx(at, took=3.9, upstream=3.9)
        for at in range(30)
    )  # type: ignore[arg-type]


def test_a_large_answer_that_its_client_takes_slowly():
    finding = SlowReader().observe(read_log_text(slow_and_quick(), "nginx.log"))
    assert finding is not None
    assert finding.level == "suspected"
    assert "CLIENT_UPLOAD_LATE" in finding.rivals


def test_a_small_answer_fits_into_the_sockets():
    assert SlowReader().observe(read_log_text(slow_and_quick(size=1800), "nginx.log")) is None


def test_a_slow_upstream_is_not_the_clients_doing():
    text = "\n".join(
        nginx(at, took=40.1 if at % 5 == 0 else 4.0, upstream=40.0 if at % 5 == 0 else 3.9) for at in range(30)
    )
    assert SlowReader().observe(read_log_text(text, "nginx.log")) is None


def test_connecting_that_takes_most_of_the_time():
    slow = "\n".join(nginx(at, took=4.1, upstream=4.0, connect="3.020") for at in range(20))
    finding = Network().observe(read_log_text(slow, "nginx.log"))
    assert finding is not None
    assert finding.level == "suspected"
    quick = "\n".join(nginx(at, took=4.1, upstream=4.0) for at in range(20))
    assert Network().observe(read_log_text(quick, "nginx.log")) is None


def test_no_header_from_the_upstream_is_no_byte_from_it():
    lines = [nginx(at, took=20.0 + at / 10, upstream=20.0) for at in range(10)]
    cut = [nginx(at, took=60.001, upstream=60.0, status=504, size=167, header="-") for at in range(10, 14)]
    told = UpstreamTimeout().observe(read_log_text("\n".join(lines + cut), "nginx.log"))
    assert told is not None
    assert told.level == "consistent"
    untold = UpstreamTimeout().observe(read_log_text("\n".join(lines + cut).replace(' uht="-"', ""), "nginx.log"))
    assert untold is not None
    assert untold.level == "suspected"


def test_any_servers_own_line_in_json(tmp_path):
    rows = [
        json.dumps(
            {
                "ts": 1767225600.0 + at * 3.1,
                "level": "info",
                "msg": "request completed",
                "http.route": "/v1/chat/completions",
                "http.status_code": 502 if at % 6 == 5 else 200,
                "duration_ms": 5001.0 if at % 6 == 5 else 2500.0 + at,
            }
        )
        for at in range(36)
    ]
    diagnosis = asked(tmp_path, gateway_jsonl="\n".join(rows))
    assert diagnosis.findings[0].code in {"GW_UPSTREAM_TIMEOUT", "GW_IDLE_TIMEOUT"}
    assert not diagnosis.not_understood
    table = access("\n".join(rows))
    assert np.nanmax(table.numbers("e2e")) == 5001.0
    assert set(table.texts("path")) == {"/v1/chat/completions"}


EVENTS = """LAST SEEN   TYPE      REASON      OBJECT            MESSAGE
41m         Warning   Unhealthy   pod/vllm-0        Liveness probe failed: Get "http://10.42.0.19:8000/health": context deadline exceeded (Client.Timeout exceeded while awaiting headers)
40m         Normal    Killing     pod/vllm-0        Container vllm failed liveness probe, will be restarted
22m (x3 over 40m)  Warning   Unhealthy   pod/vllm-0  Liveness probe failed: Get "http://10.42.0.19:8000/health": context deadline exceeded
21m         Normal    Killing     pod/vllm-0        Container vllm failed liveness probe, will be restarted
"""
DESCRIBED = "    Liveness:       http-get http://:8000/health delay=60s timeout=1s period=5s #success=1 #failure=3\n"


def busy(*, made: float = 2500.0) -> str:
    return "\n".join(
        f"(APIServer pid=1) INFO 06-02 10:00:{at}0 [loggers.py:127] Engine 000: Avg prompt throughput: 900.0 tokens/s, Avg generation throughput: {made} tokens/s, Running: 128 reqs, Waiting: {60 + at} reqs, GPU KV cache usage: 71.0%, Prefix cache hit rate: 3.0%"
        for at in range(5)
    )


def of_code(diagnosis, code):
    return next((item for item in diagnosis.findings if item.code == code), None)


def test_a_liveness_probe_that_ends_a_busy_engine(tmp_path):
    finding = of_code(asked(tmp_path, events_txt=EVENTS + DESCRIBED, vllm_log=busy()), "GW_PROBE_KILL")
    assert finding.level == "consistent"
    assert "2 times" in finding.statement
    assert "answered late (4 times)" in finding.statement
    assert "3 x 5 = 15 s" in finding.relation


@pytest.mark.parametrize(
    "files",
    [
        {"events_txt": EVENTS, "vllm_log": busy()},
        {"events_txt": EVENTS + DESCRIBED},
        {"events_txt": EVENTS + DESCRIBED, "vllm_log": busy(made=0.0)},
    ],
)
def test_without_the_probe_or_the_engines_work_it_is_a_suspicion(tmp_path, files):
    finding = of_code(asked(tmp_path, **files), "GW_PROBE_KILL")
    assert finding.level == "suspected"
    assert finding.missing
    assert "2 times" in said(finding)


def test_a_container_out_of_memory_was_not_ended_by_its_probe(tmp_path):
    text = EVENTS + DESCRIBED + "20m  Warning  OOMKilling  pod/vllm-0  Memory cgroup out of memory: OOMKilled\n"
    found = of_code(asked(tmp_path, events_txt=text, vllm_log=busy()), "GW_PROBE_KILL")
    assert found is None or "ended by it" not in found.statement
