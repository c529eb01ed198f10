"""Configuration as people paste it: what each reader makes of it, and that nothing breaks or unfolds it."""

import contextlib
import re
import textwrap
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.diagnose.observed import Observed
from tailrace.diagnose.readers.formats import format_of
from tailrace.diagnose.readers.gateway_routes import span_ms
from tailrace.diagnose.readers.nginx_conf import nginx_settings
from tailrace.diagnose.readers.nginx_text import duration_ms, parse_nginx
from tailrace.diagnose.readers.yaml_tree import Mapped, read_yaml_text, walk
from tailrace.model.errors import InputError
from tests.diagnose.speech_evidence import read


def given_file(tmp_path, name, text) -> Observed:
    path = tmp_path / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return read(path)


def told(observed: Observed, scope: str = "") -> dict:
    """Name -> value, of one scope where one is given."""
    return {item.name: item.value for item in observed.settings if not scope or item.scope == scope}


def line_of(observed: Observed, name: str) -> int:
    return next(item.place.line for item in observed.settings if item.name == name)


# -- nginx

NGINX = """\
    # main
    user nginx; worker_processes auto;
    http {
        include       mime.types;
        proxy_read_timeout 1h30m;
        map $http_upgrade $connection { default upgrade; '' close; }
        log_format main '$remote_addr - "$request" {"a": 1}; $status';
        upstream vllm { least_conn; server 10.0.0.1:8000 max_conns=64; server 10.0.0.2:8000; keepalive 32; }
        server {
            listen 443 ssl; server_name api.example.com;
            proxy_buffering off;
            content_by_lua_block { local t = { a = "}" } -- }
            }
            location ~ ^/v1/(chat|completions) { # stream
                proxy_http_version "1.1";
                proxy_pass http://vllm;
                location /v1/chat/x { proxy_buffering on; proxy_pass http://vllm; }
            }
            location / { proxy_pass http://web; proxy_read_timeout 60; gzip on }
        }
    }
"""


def test_nginx_directives_are_inherited_and_overridden(tmp_path):
    seen = given_file(tmp_path, "nginx.conf", NGINX)
    chat = told(seen, "location ~ ^/v1/(chat|completions)")
    assert chat["nginx.proxy_buffering"] == "off"
    assert chat["nginx.proxy_http_version"] == "1.1"
    assert chat["nginx.proxy_read_timeout"] == 5_400_000.0
    inner = told(seen, "location /v1/chat/x")
    assert (inner["nginx.proxy_buffering"], inner["nginx.proxy_http_version"]) == ("on", "1.1")
    rest = told(seen, "location /")
    assert rest["nginx.proxy_http_version"] == "1.0"
    assert "proxy_http_version" in rest["nginx.unset"]
    assert rest["nginx.proxy_read_timeout"] == 60_000.0
    upstream = told(seen, "upstream vllm")
    assert (upstream["nginx.balancing"], upstream["nginx.max_conns"]) == ("least_conn", 64.0)
    assert line_of(seen, "nginx.proxy_read_timeout") == 5
    (understood,) = seen.understood
    assert any("include mime.types is not followed" in example for example in understood.examples)
    assert any("no semicolon" in example for example in understood.examples)


@pytest.mark.parametrize(
    "text",
    [
        "location /v1/ { proxy_pass http://a; proxy_buffering off; proxy_http_version 1.1; }",
        "proxy_pass http://a;\nproxy_buffering off;\nproxy_http_version 1.1;\n",
        "server {\r\n location / {\r\n proxy_pass http://a;\r\n proxy_buffering off; proxy_http_version 1.1;\r\n}}\r\n",
        "\ufeffserver { proxy_buffering off; proxy_http_version 1.1; location /v1/ { proxy_pass http://a; } }",
    ],
)
def test_a_piece_of_nginx_is_enough(tmp_path, text):
    seen = given_file(tmp_path, "snippet.txt", text)
    assert {told(seen)["nginx.proxy_buffering"], told(seen)["nginx.proxy_http_version"]} == {"off", "1.1"}


def test_nginx_without_a_location_that_passes_on_is_refused(tmp_path):
    with pytest.raises(InputError, match="no location"):
        given_file(tmp_path, "nginx.conf", "server { listen 80; root /var/www; }")


@pytest.mark.parametrize(
    ("text", "ms"),
    [("60s", 60_000), ("60", 60_000), ("500ms", 500), ("1h30m", 5_400_000), ("1d", 86_400_000), ("1M", 2.592e9)],
)
def test_nginx_times(text, ms):
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "$timeout", "60x", "s", "9" * 100, "-5s"])
def test_what_is_no_nginx_time(text):
    assert duration_ms(text) is None


WORD = st.text("abcdefghijklmnopqrstuvwxyz_0123456789$/.~^-:=", min_size=1, max_size=12).filter(lambda word: word != "")
QUOTED = st.text("abc {};#'\\ \t", max_size=10).map(
    lambda text: '"' + text.replace("\\", "\\\\").replace('"', "") + '"'
)
DIRECTIVE = st.tuples(WORD.filter(lambda word: not word.endswith("_lua_block")), st.lists(WORD | QUOTED, max_size=3))


def written(block, depth, rng) -> str:
    """Directives with nested blocks, comments and odd spaces between."""
    spaces = [" ", "\n", "\t", "  # a comment { } ; \" '\n", "\r\n"]
    out = []
    for name, arguments, inner in block:
        out.append(rng.choice(spaces) + " ".join([name, *arguments]))
        out.append(" {" + written(inner, depth + 1, rng) + "}" if inner is not None else rng.choice(["", " "]) + ";")
    return "".join(out) + rng.choice(spaces)


BLOCKS = st.recursive(
    st.lists(st.tuples(WORD, st.lists(WORD | QUOTED, max_size=3), st.none()), max_size=4),
    lambda inner: st.lists(st.tuples(WORD, st.lists(WORD | QUOTED, max_size=2), st.none() | inner), max_size=4),
    max_leaves=12,
)


def shape(block):
    return [
        (
            name,
            tuple(re.sub(r"\\(.)", r"\1", one[1:-1]) if one.startswith('"') else one for one in arguments),
            None if inner is None else shape(inner),
        )
        for name, arguments, inner in block
    ]


def shape_read(directives):
    return [(one.name, one.arguments, None if one.block is None else shape_read(one.block)) for one in directives]


@given(BLOCKS, st.randoms(use_true_random=False))
def test_nginx_reads_back_what_was_written(block, rng):
    top, wrong = parse_nginx(written(block, 0, rng))
    assert wrong == []
    assert shape_read(top) == shape(block)


@given(st.text(alphabet="ab{};#\"'\\ \n\t$", max_size=200) | st.text(max_size=100))
def test_nginx_never_fails(text):
    parse_nginx(text)
    nginx_settings(text, "x")


@pytest.mark.parametrize(
    "text",
    ["{" * 100_000, "a {" * 100_000, "a" * 4_000_000 + ";", '"' * 1_000_000, "a b;" * 50_000, "'" + "\\" * 999_999],
    ids=["braces", "blocks", "word", "quotes", "directives", "backslashes"],
)
def test_nginx_is_bounded(text):
    began = time.process_time()
    parse_nginx(text)
    assert time.process_time() - began < 10


# -- gateways


def test_envoy_routes_with_the_default_that_ends_them(tmp_path):
    seen = given_file(
        tmp_path,
        "envoy.yaml",
        """\
        static_resources:
          listeners:
          - name: main
            filter_chains:
            - filters:
              - name: envoy.filters.network.http_connection_manager
                typed_config:
                  stream_idle_timeout: 300s
                  route_config:
                    virtual_hosts:
                    - name: llm
                      routes:
                      - match: {prefix: "/v1/chat"}
                        route: {cluster: vllm, timeout: 0s, idle_timeout: 1m30s}
                      - match: {prefix: "/v1"}
                        route: {cluster: vllm, retry_policy: {num_retries: 3, per_try_timeout: 20s}}
        """,
    )
    assert told(seen, "/v1/chat") == {"envoy.request_timeout": 0.0, "envoy.idle_timeout": 90_000.0}
    assert told(seen, "/v1 (default)") == {"envoy.request_timeout": 15_000.0}
    assert told(seen, "/v1")["envoy.per_try_timeout"] == 20_000.0
    assert told(seen)["envoy.retries"] == 3.0


def test_istio_gateway_api_and_apisix(tmp_path):
    istio = given_file(
        tmp_path,
        "vs.yaml",
        """\
        apiVersion: networking.istio.io/v1
        kind: VirtualService
        metadata: {name: llm}
        spec:
          http:
          - name: chat
            timeout: 30s
            retries: {attempts: 3, perTryTimeout: 10s}
        ---
        apiVersion: gateway.networking.k8s.io/v1
        kind: HTTPRoute
        metadata: {name: llm}
        spec:
          rules:
          - timeouts: {request: 10s, backendRequest: 2s}
        """,
    )
    assert told(istio, "VirtualService llm / chat") == {
        "istio.request_timeout": 30_000.0,
        "istio.retries": 3.0,
        "istio.per_try_timeout": 10_000.0,
    }
    assert [item.value for item in istio.settings if item.name == "gateway_api.request_timeout"] == [10_000.0, 2_000.0]
    apisix = given_file(
        tmp_path,
        "apisix.yaml",
        """\
        routes:
          - uri: /v1/*
            plugins: {proxy-buffering: {disable_proxy_buffering: true}}
            upstream:
              timeout: {connect: 6, send: 6, read: 60}
              nodes: {"10.0.0.1:8000": 1}
        #END
        """,
    )
    assert told(apisix, "/v1/*")["apisix.proxy_buffering"] == "off"
    assert told(apisix, "/v1/*")["apisix.read_timeout"] == 60_000.0


def test_higress_and_nginx_inside_a_config_map(tmp_path):
    seen = given_file(
        tmp_path,
        "map.yaml",
        """\
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: higress-config}
        data:
          higress: |
            downstream:
              idleTimeout: 180
            upstream:
              idleTimeout: 10
          nginx.conf: |
            server {
              location /v1/ {
                proxy_pass http://a;
              }
            }
        """,
    )
    idle = [(item.value, item.place.line) for item in seen.settings if item.name == "higress.idle_timeout"]
    assert idle == [(180_000.0, 7), (10_000.0, 9)]
    assert told(seen)["nginx.proxy_buffering"] == "on"
    assert line_of(seen, "nginx.proxy_pass") == 13


def test_ingress_annotations_are_nginx(tmp_path):
    seen = given_file(
        tmp_path,
        "ingress.yaml",
        """\
        apiVersion: networking.k8s.io/v1
        kind: Ingress
        metadata:
          name: llm
          annotations:
            nginx.ingress.kubernetes.io/proxy-read-timeout: "60"
            nginx.ingress.kubernetes.io/proxy-buffering: "on"
        spec: {rules: []}
        """,
    )
    assert told(seen, "Ingress llm")["nginx.proxy_read_timeout"] == 60_000.0
    assert told(seen)["nginx.proxy_buffering"] == "on"


# -- Kubernetes and Compose

MANIFEST = """\
    apiVersion: v1
    kind: Service
    metadata: {name: vllm}
    spec: {ports: [{port: 80}]}
    ---
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: vllm}
    spec:
      replicas: 2
      template:
        spec:
          containers:
          - name: engine
            image: vllm/vllm-openai:v0.11.0
            command: ["/bin/bash", "-c"]
            args:
            - |
              vllm serve meta-llama/Llama-3-8B --max-num-seqs 16 \\
                --max-num-batched-tokens 16384 --no-enable-prefix-caching --api-key secret
            livenessProbe: &probe
              httpGet: {path: /health, port: 8000}
            readinessProbe:
              <<: *probe
              periodSeconds: 5
              timeoutSeconds: 30
            resources: {limits: {cpu: 1500m, nvidia.com/gpu: 4}, requests: {cpu: 1}}
"""


def test_a_manifest_tells_probes_resources_and_options(tmp_path):
    seen = given_file(tmp_path, "vllm.yaml", MANIFEST)
    own = told(seen, "Deployment vllm / container engine")
    assert own["k8s.liveness.timeout"] == 1000.0
    assert own["k8s.liveness.detection"] == 30_000.0
    assert own["k8s.liveness.unset"] == ["timeoutSeconds", "periodSeconds", "failureThreshold"]
    assert own["k8s.readiness.timeout"] == 30_000.0
    assert own["k8s.readiness.period"] == 5000.0
    assert (own["k8s.cpu_limit"], own["k8s.cpu_request"], own["k8s.gpus"]) == (1.5, 1.0, 4.0)
    assert (own["engine"], own["version"], own["max_num_seqs"], own["max_num_batched_tokens"]) == (
        "vllm",
        "0.11.0",
        16,
        16384,
    )
    assert own["prefix_caching"] is False
    assert not any("secret" in str(item.value) for item in seen.settings)
    (understood,) = seen.understood
    assert (understood.understood, understood.total) == (1, 2)
    assert "Service" in understood.examples[0]


def test_a_compose_file(tmp_path):
    seen = given_file(
        tmp_path,
        "docker-compose.yml",
        """\
        services:
          vllm:
            image: vllm/vllm-openai:latest
            command: ["--model", "m", "--max-num-seqs", "64"]
            healthcheck: {test: ["CMD", "true"], interval: 1m30s, timeout: 2s, retries: 3}
            deploy: {resources: {limits: {cpus: "4.0"}}}
          web: {image: nginx}
        """,
    )
    own = told(seen, "service vllm")
    assert (own["max_num_seqs"], own["k8s.cpu_limit"], own["compose.health.period"]) == (64, 4.0, 90_000.0)


def test_a_template_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(InputError, match="a template"):
        given_file(tmp_path, "t.yaml", "apiVersion: v1\nkind: Deployment\nspec: {replicas: {{ .Values.replicas }} }\n")


def test_yaml_that_decides_nothing_is_refused(tmp_path):
    with pytest.raises(InputError, match="nothing in it decides latency"):
        given_file(tmp_path, "s.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: x}\n")


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + at)}: &{chr(98 + at)} [{','.join(['*' + chr(97 + at)] * 9)}]\n" for at in range(12)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(f"a{at}: &a{at}\n  k{at}: 1\n  <<: *a{at - 1}\n" for at in range(1, 3000))


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "a: &a [*a]\n",
        "a: &a {b: *a}\n",
        MERGES,
        "[" * 5000,
        "a:\n" + "".join(" " * at + "b:\n" for at in range(1, 500)),
    ],
    ids=["aliases", "itself in a list", "itself in a mapping", "merges", "brackets", "deep"],
)
def test_yaml_is_bounded(text):
    began = time.process_time()
    try:
        for document in read_yaml_text(text, "x"):
            assert sum(1 for _ in walk(document)) < 200_000
    except InputError:
        pass
    assert time.process_time() - began < 10


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-999, 999) | st.text("abc :#-{}[]'\"\n", max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=4), inner, max_size=3)
        ),
        max_leaves=20,
    )
)
def test_yaml_reads_back_what_was_written(data):
    import yaml

    (document,) = read_yaml_text(yaml.safe_dump(data), "x") or [None]

    def plain(node):
        if isinstance(node, Mapped):
            return {key: plain(value) for key, value in node.values.items()}
        return [plain(one) for one in node] if isinstance(node, list) else node

    def keyed(node):
        if isinstance(node, dict):
            return {yaml.safe_dump(key).split("\n")[0].strip("'\"") if not isinstance(key, str) else key: keyed(value)
                    for key, value in node.items()}  # fmt: skip
        return [keyed(one) for one in node] if isinstance(node, list) else node

    assert plain(document) == keyed(data)


@given(st.text(max_size=200))
def test_yaml_of_any_text_is_read_or_refused(text):
    with contextlib.suppress(InputError):
        read_yaml_text(text, "x")


@pytest.mark.parametrize(
    ("value", "ms"), [("60s", 60_000), ("1m30s", 90_000), (60, 60_000), ("0.25s", 250), (True, None), ("soon", None)]
)
def test_spans(value, ms):
    assert span_ms(value) == ms


# -- engines' command lines


@pytest.mark.parametrize(
    ("text", "told_of"),
    [
        ("vllm serve m --max-num-seqs 32 --enable-chunked-prefill", {"engine": "vllm", "max_num_seqs": 32}),
        (
            "python -m sglang.launch_server --model-path m --max-running-requests 48 --chunked-prefill-size 4096",
            {"engine": "sglang", "max_num_seqs": 48},
        ),
        ("./llama-server -m x.gguf -c 8192 -np 4 -b 2048", {"engine": "llamacpp", "slots": 4}),
        (
            "docker run --gpus all -e A=b vllm/vllm-openai:v0.9.1 --model m --max-num-batched-tokens=8192",
            {"engine": "vllm", "max_num_batched_tokens": 8192, "version": "0.9.1"},
        ),
    ],
)
def test_engine_command_lines(tmp_path, text, told_of):
    seen = given_file(tmp_path, "serve.sh", f"#!/bin/bash\n{text}\n")
    assert told(seen).items() >= told_of.items()
    assert line_of(seen, "engine") == 2


def test_a_command_over_several_lines_keeps_the_lines_of_its_options(tmp_path):
    seen = given_file(tmp_path, "run.txt", "vllm serve m \\\n  --max-num-seqs 32 \\\n  --api-key secret\n")
    assert line_of(seen, "max_num_seqs") == 2
    assert "secret" not in str(seen.settings)


def test_triton_models(tmp_path):
    seen = given_file(
        tmp_path,
        "config.pbtxt",
        """\
        name: "asr"
        backend: "onnxruntime"
        max_batch_size: 8
        instance_group [ { count: 1 kind: KIND_GPU } ]
        dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 500000 }
        """,
    )
    own = told(seen, "model asr")
    assert (own["instances"], own["batch_delay_us"], own["max_batch_size"]) == (1, 500_000, 8)
    assert line_of(seen, "batch_delay_us") == 5


# -- Python

CLIENT = """\
    import aiohttp, httpx
    from openai import AsyncOpenAI
    N = 25 * 2
    async def go():
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=N),
                                         timeout=aiohttp.ClientTimeout(total=60, sock_read=5)) as s:
            pass
        async with aiohttp.ClientSession() as t:
            pass
    client = AsyncOpenAI(base_url="http://x", timeout=30, max_retries=0)
"""


def test_python_clients_and_their_defaults(tmp_path):
    seen = given_file(tmp_path, "client.py", CLIENT)
    assert told(seen, "aiohttp.TCPConnector") == {"client.connection_limit": 50.0}
    assert told(seen, "aiohttp.ClientTimeout") == {"client.timeout": 60_000.0, "client.read_timeout": 5000.0}
    assert told(seen, "aiohttp.ClientSession (default)") == {
        "client.connection_limit": 100.0,
        "client.timeout": 300_000.0,
    }
    assert told(seen, "AsyncOpenAI")["client.timeout"] == 30_000.0
    assert told(seen, "AsyncOpenAI")["client.retries"] == 0.0


def test_code_is_never_run(tmp_path):
    mark = tmp_path / "ran"
    given_file(
        tmp_path,
        "evil.py",
        f"""\
        import aiohttp, pathlib
        pathlib.Path({str(mark)!r}).touch()
        LIMIT = __import__("os").system("touch {mark}")
        c = aiohttp.TCPConnector(limit=64)
        d = aiohttp.TCPConnector(limit=LIMIT)
        """,
    )
    assert not mark.exists()


def test_a_piece_of_a_function_is_enough(tmp_path):
    seen = given_file(
        tmp_path, "x.txt", "    connector = aiohttp.TCPConnector(limit=20)\n    await session.post(url)\n"
    )
    assert told(seen)["client.connection_limit"] == 20.0


def test_what_a_program_printed_below_its_code_is_no_reason_to_refuse_it(tmp_path):
    seen = given_file(
        tmp_path,
        "x.txt",
        "client = OpenAI(timeout=60.0)\n# every third call:\nopenai.APITimeoutError: Request timed out.\n",
    )
    assert told(seen)["client.timeout"] == 60_000.0
    rest = next(item for item in seen.understood if "no Python" in item.what)
    assert (rest.understood, rest.total) == (0, 1)
    assert "APITimeoutError" in rest.examples[0]


@pytest.mark.parametrize(
    "text", ["import aiohttp\nx = aiohttp.TCPConnector(limit=\n", "aiohttp.TCPConnector(" + "(" * 5000]
)
def test_what_is_no_python_is_refused(tmp_path, text):
    with pytest.raises(InputError, match="no Python"):
        given_file(tmp_path, "bad.py", text)


def test_voice_agents_tell_how_long_they_wait(tmp_path):
    seen = given_file(
        tmp_path,
        "agent.py",
        """\
        from pipecat.audio.vad import VADParams
        vad = VADParams(stop_secs=0.8)
        session = AgentSession(min_endpointing_delay=1.5)
        """,
    )
    assert told(seen) == {"speech.stop_secs": 800.0, "speech.min_endpointing_delay": 1500.0}


# -- headers, and what is none of these


def test_headers_of_a_proxy(tmp_path):
    seen = given_file(
        tmp_path,
        "headers.txt",
        "HTTP/1.1 200 OK\ncontent-type: application/json\nx-litellm-overhead-duration-ms: 43.2\n"
        'server-timing: queue;dur=12.5, prefill;desc="p";dur=40\n',
    )
    assert told(seen) == {"litellm.overhead": 43.2, "server_timing.queue": 12.5, "server_timing.prefill": 40.0}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vllm.log", "(APIServer pid=1) INFO 05-11 17:50:24 [loggers.py:271] Engine 000: Avg prompt throughput: 0.0\n"),
        ("vllm.log", "INFO 05-11 17:50:24 [api_server.py:1] args: vllm serve m --max-num-seqs 3\n" * 3),
        ("table.md", "| proxy_buffering | TTFT p50 (ms) |\n|---|---|\n| on | 287 |\n| off | 22 |\n"),
        ("bench.sh", "vllm bench serve --request-rate 5 --num-prompts 100\n"),
        (
            "access.log",
            '10.0.0.1 - - [01/Jan/2026:00:00:00 +0000] "POST /v1/x HTTP/1.1" 200 5 "-" "python aiohttp/3"\n',
        ),
        ("notes.txt", "We set proxy_buffering to off and it is still slow.\n"),
        ("a.json", '{"facts": 1, "context": {"changed": "nginx proxy_buffering"}}\n'),
    ],
)
def test_what_is_something_else_is_left_to_its_reader(name, text):
    form = format_of(text, name)
    assert form is None or form.name not in {
        "nginx configuration",
        "deployment YAML",
        "engine command line",
        "Python client code",
        "response headers",
        "Triton model configuration",
    }


@given(st.text(max_size=300))
def test_no_beginning_of_a_file_breaks_the_telling(text):
    for name in ("x", "x.yaml", "x.py", "x.conf", "x.jsonl", "x.pbtxt"):
        format_of(text, name)
