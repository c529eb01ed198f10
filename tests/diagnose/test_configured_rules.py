"""Rules on configuration: beside numbers they decide, alone they are never more than a suspicion."""

import json
import textwrap

import pytest

from tailrace.app.diagnose import diagnose_sources
from tailrace.diagnose.causes import CAUSES
from tailrace.diagnose.configured.lint import RULES
from tailrace.diagnose.configured.timers import alike, timers
from tailrace.diagnose.observed import Observed, Setting
from tailrace.model.finding import Finding, Level
from tests.diagnose.speech_evidence import says_nothing_else


def answer(tmp_path, **files):
    """The diagnosis of files; `nginx_conf="…"` becomes nginx.conf. What is no text is written as JSON lines."""
    paths = []
    for name, content in files.items():
        stem, _, ending = name.rpartition("_")
        path = tmp_path / f"{stem}.{ending}"
        text = content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content)
        path.write_text(textwrap.dedent(text))
        paths.append(str(path))
    result = diagnose_sources(paths)
    for finding in result.findings:
        says_nothing_else(finding)
    return result


def of_code(result, code) -> Finding | None:
    return next((finding for finding in result.findings if finding.code == code), None)


# -- buffering

CLOSED = "server { location /v1/ { proxy_pass http://e; } }\n"
OPEN = "server { location /v1/ { proxy_pass http://e; proxy_buffering off; proxy_http_version 1.1; } }\n"
HALF = "server { location /v1/ { proxy_pass http://e; proxy_buffering off; } }\n"


@pytest.mark.parametrize(
    "table",
    [
        """\
        | path | TTFT p50 (ms) | ITL p50 (ms) |
        |---|---|---|
        | direct to engine | 22.4 | 5.49 |
        | through the load balancer | 287.2 | 1.58 |
        """,
        """\
        | setup | mean ITL (ms) | mean TTFT (s) |
        |---|---|---|
        | via nginx | 3.1 | 2.9 |
        | without proxy | 24 | 0.31 |
        """,
        """\
        path,ttft_p50_ms,itl_p50_ms
        port-forward to the pod,180,21
        ingress,1900,2
        """,
    ],
    ids=["as reported", "other headings, units and order", "csv"],
)
@pytest.mark.parametrize("conf", [None, CLOSED, HALF])
def test_a_hop_cannot_speed_tokens_up(tmp_path, table, conf):
    name = "paths_csv" if "path,ttft" in table else "paths_md"
    result = answer(tmp_path, **({name: table} | ({} if conf is None else {"nginx_conf": conf})))
    first = result.findings[0]
    assert (first.code, first.level) == ("GW_PROXY_BUFFERING", Level.CONSISTENT)
    assert "proxy_buffering off" in first.advice
    assert "proxy_http_version 1.1" in first.advice
    if conf is not None:
        assert "nginx.conf:1" in [item.source for item in first.evidence]
    if conf == HALF:
        assert "proxy_http_version is 1.0" in first.statement
        assert "proxy_buffering is on" not in first.statement


def test_where_the_hop_that_is_known_passes_streams_on_another_one_holds_them(tmp_path):
    table = "| path | TTFT p50 (ms) | ITL p50 (ms) |\n|---|---|---|\n| direct | 22 | 5.5 |\n| via proxy | 290 | 1.6 |\n"
    first = answer(tmp_path, paths_md=table, nginx_conf=OPEN).findings[0]
    assert (first.code, first.level) == ("GW_PROXY_BUFFERING", Level.SUSPECTED)
    assert "every other hop" in first.missing[0]


def test_client_and_upstream_in_one_row(tmp_path):
    facts = {
        "facts": 1,
        "arms": {"gateway": {"ttft_p50_ms": 300, "itl_p50_ms": 1.6}, "engine": {"ttft_p50_ms": 25, "itl_p50_ms": 5.5}},
    }
    first = answer(tmp_path, form_json=json.dumps(facts)).findings[0]
    assert first.code == "GW_PROXY_BUFFERING"


@pytest.mark.parametrize(
    "table",
    [
        # an admission watermark smooths the gaps and delays the first token: no hop is named
        "| watermark | TTFT p50 (s) | ITL p50 (ms) |\n|---|---|---|\n| 0 | 6.56 | 40.6 |\n| 0.05 | 11.20 | 17.7 |\n",
        # a slower way: everything is later, nothing comes faster
        "| path | TTFT p50 (ms) | ITL p50 (ms) |\n|---|---|---|\n| direct | 22 | 5.5 |\n| via proxy | 90 | 5.6 |\n",
        # the direct path is the slow one
        "| path | TTFT p50 (ms) | ITL p50 (ms) |\n|---|---|---|\n| direct | 290 | 1.6 |\n| via proxy | 22 | 5.5 |\n",
        # other loads
        "path,concurrency,TTFT p50 (ms),ITL p50 (ms)\ndirect,1,22,5.5\nvia proxy,64,290,1.6\n",
    ],
    ids=["no hop", "no faster", "direct slow", "other load"],
)
def test_what_is_no_buffering(tmp_path, table):
    assert of_code(answer(tmp_path, paths_md=table), "GW_PROXY_BUFFERING") is None


def test_a_tail_alone_does_not_fit(tmp_path):
    table = "| path | TTFT p99 (ms) | ITL p99 (ms) |\n|---|---|---|\n| direct | 22 | 5.5 |\n| via proxy | 290 | 1.6 |\n"
    found = of_code(answer(tmp_path, paths_md=table), "GW_PROXY_BUFFERING")
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "median" in found.missing[0]


def test_configuration_alone_is_a_suspicion(tmp_path):
    first = answer(tmp_path, nginx_conf=CLOSED).findings[0]
    assert (first.code, first.level) == ("GW_PROXY_BUFFERING", Level.SUSPECTED)
    assert "TTFT and ITL" in first.missing[0]
    assert of_code(answer(tmp_path, nginx_conf=OPEN), "GW_PROXY_BUFFERING") is None


# -- timers


def test_timers_are_told_apart():
    made = [
        ("nginx.proxy_read_timeout", 60_000.0, "ms"),
        ("envoy.idle_timeout", 300_000.0, "ms"),
        ("client.timeout", 30_000.0, "ms"),
        ("k8s.liveness.timeout", 1000.0, "ms"),
        ("probe_timeout_s", 2, ""),
        ("proxy_read_timeout_s", 15, ""),
        ("idle_timeout", 20, ""),
        ("nginx.proxy_connect_timeout", 60_000.0, "ms"),
        ("envoy.request_timeout", 0.0, "ms"),
    ]
    seen = Observed(settings=[Setting(name=name, value=value, unit=unit) for name, value, unit in made])
    assert [(timer.name, timer.ms, timer.kind, timer.owner) for timer in timers(seen)] == [
        ("nginx.proxy_read_timeout", 60_000.0, "read", "gateway"),
        ("envoy.idle_timeout", 300_000.0, "idle", "gateway"),
        ("client.timeout", 30_000.0, "total", "client"),
        ("proxy_read_timeout_s", 15_000.0, "read", "gateway"),
        ("idle_timeout", 20_000.0, "idle", "gateway"),
    ]
    assert [timer.name for timer in alike(seen, 15_010.0)] == ["proxy_read_timeout_s"]
    assert alike(seen, 17_000.0) == []


ENVOY = """\
    static_resources:
      listeners:
      - name: main
        routes:
        - match: {prefix: "/v1"}
          route: {cluster: vllm, timeout: 0s, idle_timeout: 15s}
"""


def requests(ages_s, *, status="error", received=0, http=None, n_ok=40):
    rows = [
        {
            "id": f"ok{at}",
            "t_send_ms": at * 500.0,
            "t_first_ms": at * 510.0 + 400,
            "t_last_ms": at * 500.0 + 4000,
            "status": "ok",
            "bytes_received": 9000,
        }
        for at in range(n_ok)
    ]
    for at, age in enumerate(ages_s):
        row = {
            "id": f"bad{at}",
            "t_send_ms": at * 900.0,
            "t_first_ms": None,
            "t_last_ms": at * 900.0 + age * 1e3,
            "status": status,
        }
        if received is not None:
            row["bytes_received"] = received
        if http is not None:
            row["http_status"] = http
        rows.append(row)
    return rows


AT_FIFTEEN = [15.0 + 0.001 * (at % 20) for at in range(20)]


def test_failures_of_one_age_with_nothing_received(tmp_path):
    found = of_code(
        answer(tmp_path, requests_jsonl=requests([*AT_FIFTEEN, 3.2]), gateway_yaml=ENVOY), "GW_IDLE_TIMEOUT"
    )
    assert found is not None
    assert found.level is Level.CONSISTENT
    assert "20 of 21" in found.statement
    assert "envoy.idle_timeout (15 s)" in found.statement
    assert "heartbeat" in found.advice


def test_without_the_timers_of_the_hops_it_is_suspected(tmp_path):
    found = of_code(answer(tmp_path, requests_jsonl=requests([*AT_FIFTEEN, 3.2])), "GW_IDLE_TIMEOUT")
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "idle and read timeouts" in found.missing[0]
    uncounted = answer(tmp_path, requests_jsonl=requests([*AT_FIFTEEN, 3.2]), gateway_yaml=ENVOY.replace("15s", "99s"))
    found = of_code(uncounted, "GW_IDLE_TIMEOUT")
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "none that is known has this value" in found.missing[0]


@pytest.mark.parametrize(
    "rows",
    [
        requests([2.0 + 1.7 * at for at in range(21)]),  # ages spread
        requests(AT_FIFTEEN, received=800),  # something had come
        requests(AT_FIFTEEN, status="timeout"),  # the client's own timer
        requests(AT_FIFTEEN, status="cancelled"),  # users who leave
        requests([15.0, 15.01]),  # two are no pile
    ],
    ids=["spread", "bytes", "client", "cancelled", "few"],
)
def test_failures_that_no_idle_timer_made(tmp_path, rows):
    assert of_code(answer(tmp_path, requests_jsonl=rows, gateway_yaml=ENVOY), "GW_IDLE_TIMEOUT") is None


@pytest.mark.parametrize("status", [504, 524])
def test_a_proxy_that_answers_with_its_own_status_ended_them_itself(tmp_path, status):
    conf = "server { location /v1/ { proxy_pass http://e; proxy_read_timeout 15s; } }"
    result = answer(tmp_path, requests_jsonl=requests(AT_FIFTEEN, http=status), nginx_conf=conf)
    assert of_code(result, "GW_IDLE_TIMEOUT") is None
    found = of_code(result, "GW_UPSTREAM_TIMEOUT")
    assert found is not None
    assert not any("504" in one.text for one in found.evidence if status != 504), "no status that nobody answered with"
    assert found.level is Level.CONSISTENT
    assert "nginx.proxy_read_timeout (15 s)" in found.statement


def test_an_access_log_finds_its_timer_in_the_configuration(tmp_path):
    line = (
        '10.0.0.{0} - - [01/Jan/2026:00:0{0}:00 +0000] "POST /v1/completions HTTP/1.1" 504 160 "-" "curl" 1236 {1} '
        "[llm] [] 10.2.0.9:80 0 {2} 504 r{0}\n"
    )
    log = "".join(line.format(at, "60.001", "60.000") for at in range(1, 6))
    conf = "server { location /v1/ { proxy_pass http://e; } }"
    found = of_code(answer(tmp_path, access_log=log, nginx_conf=conf), "GW_UPSTREAM_TIMEOUT")
    assert found is not None
    assert any("nginx.proxy_read_timeout" in item.text for item in found.evidence)


def test_a_timer_shorter_than_the_tail(tmp_path):
    conf = OPEN.replace("proxy_buffering", "proxy_read_timeout 5s; proxy_buffering")
    table = "| run | n | TTFT p50 (ms) | TTFT p99 (ms) |\n|---|---|---|---|\n| today | 900 | 400 | 7200 |\n"
    found = of_code(answer(tmp_path, table_md=table, nginx_conf=conf), "GW_UPSTREAM_TIMEOUT")
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "7.2 s" in found.statement
    roomy = answer(tmp_path, table_md=table, nginx_conf=conf.replace("5s", "60s"))
    assert of_code(roomy, "GW_UPSTREAM_TIMEOUT") is None


# -- probes, limits, engine options

MANIFEST = """\
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: vllm}
    spec:
      template:
        spec:
          containers:
          - name: engine
            image: vllm/vllm-openai:v0.11.0
            args: ["--model", "m", "--max-num-seqs=16", "--max-num-batched-tokens=16384", "--no-enable-prefix-caching"]
            livenessProbe:
              httpGet: {path: /health, port: 8000}
            resources: {limits: {cpu: "1", nvidia.com/gpu: 4}}
"""
NEEDED = {"GW_PROBE_KILL", "FE_CPU_STARVED", "TUNE_NOT_SCALE", "SCHED_PREFILL_STEALS_DECODE", "MIX_CACHE_MISS"}


def test_a_manifest_alone_gives_suspicions_each_with_what_decides(tmp_path):
    result = answer(tmp_path, vllm_yaml=MANIFEST)
    assert {finding.code for finding in result.findings} == NEEDED
    assert {finding.level for finding in result.findings} == {Level.SUSPECTED}
    assert all(finding.missing and finding.advice and finding.price and finding.verify for finding in result.findings)
    starved = of_code(result, "FE_CPU_STARVED")
    assert starved is not None
    assert "1 cores" in starved.statement
    assert "6 processes" in starved.statement


def test_a_sound_manifest_gives_none(tmp_path):
    sound = (
        MANIFEST.replace(
            '"--max-num-seqs=16", "--max-num-batched-tokens=16384", "--no-enable-prefix-caching"', '"--port=1"'
        )
        .replace("port: 8000}", "port: 8000}\n              timeoutSeconds: 30\n              failureThreshold: 10")
        .replace('cpu: "1"', 'cpu: "16"')
    )
    assert [finding.code for finding in answer(tmp_path, vllm_yaml=sound).findings] == ["INSUFFICIENT_EVIDENCE"]


def test_a_probe_is_judged_by_the_pauses_that_were_seen(tmp_path):
    quiet = "t_s,health_rtt_max_s\n0,0.05\n60,0.06\n120,0.05\n"
    assert of_code(answer(tmp_path, vllm_yaml=MANIFEST, series_csv=quiet), "GW_PROBE_KILL") is None
    busy = "t_s,health_rtt_max_s\n0,0.05\n60,4.2\n120,0.05\n"
    found = of_code(answer(tmp_path, vllm_yaml=MANIFEST, series_csv=busy), "GW_PROBE_KILL")
    assert found is not None
    assert "4.2 s" in found.statement
    assert "progress" in found.advice


def test_restarts_beside_the_queue_and_the_manifest(tmp_path):
    rows = ["t_s,health_rtt_max_s,engine_running,engine_waiting,restarts_total,engine_errors_total"]
    restarts = 0
    for at in range(12):
        busy = at % 4 == 3
        restarts += busy
        rows.append(f"{at * 600},{3.1 if busy else 0.05},{40 if busy else 20},{150 if busy else 8},{restarts},0")
    found = of_code(answer(tmp_path, vllm_yaml=MANIFEST, series_csv="\n".join(rows) + "\n"), "GW_PROBE_KILL")
    assert found is not None
    assert found.level is Level.CONSISTENT
    assert any("vllm.yaml" in item.source for item in found.evidence)
    assert any("3 misses x 10 s = 30 s" in item.text for item in found.evidence)


def test_a_client_with_fewer_connections_than_requests(tmp_path):
    code = "import aiohttp\ns = aiohttp.ClientSession()\n"
    alone = of_code(answer(tmp_path, client_py=code), "GW_CONN_POOL_CAP")
    assert alone is not None
    assert "100" in alone.statement
    assert alone.level is Level.SUSPECTED
    form = json.dumps({"facts": 1, "context": {"max_concurrency": 256}})
    beside = of_code(answer(tmp_path, client_py=code, form_json=form), "GW_CONN_POOL_CAP")
    assert beside is not None
    assert "156 wait" in beside.statement
    chosen = "import aiohttp\ns = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=512))\n"
    assert of_code(answer(tmp_path, client_py=chosen, form_json=form), "GW_CONN_POOL_CAP") is None


def test_a_context_that_the_cache_cannot_hold(tmp_path):
    form = json.dumps({"facts": 1, "context": {"max_model_len": 131072, "kv_capacity_tokens": 77088}})
    found = of_code(answer(tmp_path, form_json=form), "SCHED_ADMISSION_DEADLOCK")
    assert found is not None
    assert found.level is Level.SUSPECTED
    fits = json.dumps({"facts": 1, "context": {"max_model_len": 32768, "kv_capacity_tokens": 77088}})
    assert of_code(answer(tmp_path, form_json=fits), "SCHED_ADMISSION_DEADLOCK") is None


def test_triton_and_what_check_says_of_it(tmp_path):
    model = """\
        name: "asr"
        backend: "onnxruntime"
        max_batch_size: 8
        instance_group [ { count: 1 kind: KIND_GPU } ]
        dynamic_batching { max_queue_delay_microseconds: 500000 }
        """
    result = answer(tmp_path, config_pbtxt=model)
    assert {"SCHED_BATCHER_WAIT", "SCHED_INSTANCE_LIMIT"} <= {finding.code for finding in result.findings}


def test_every_rule_on_configuration_has_its_cause():
    assert set(RULES) <= {cause.code for cause in CAUSES}
