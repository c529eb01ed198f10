"""What a run file says about the two sides of a run, and what it must never say."""

import json
import os
import shlex
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.analyze.conditions import conditions_line
from tailrace.probe.command import MASK, masked
from tailrace.probe.conditions import host, prompts_of, warmup_of
from tests.probe.raw_server import RawServer, serving, whole
from tests.probe.running import run, spec_for

SECRET = "sk-very-secret-99"


@pytest.mark.parametrize(
    "words",
    [
        ["tailrace", "bench", "http://h", "--api-key", SECRET],
        ["tailrace", "bench", "http://h", f"--api-key={SECRET}"],
        ["tailrace", "bench", "http://h", "--header", f"Authorization: Bearer {SECRET}"],
        ["tailrace", "bench", "http://h", f"--header=x-api-key: {SECRET}"],
        ["tailrace", "bench", "http://h", "--header", f"Cookie: a={SECRET}"],
        ["tailrace", "bench", "http://h", "--header", f"x-goog-Api-Key:{SECRET}"],
        ["tailrace", "bench", f"http://user:{SECRET}@h:8000/v1"],
        ["tailrace", "bench", f"http://h/v1?api-version=3&api_key={SECRET}&x=1"],
        ["tailrace", "bench", "http://h", "--extra-body", json.dumps({"temperature": 0, "auth_token": SECRET})],
        ["tailrace", "bench", "http://h", f'--extra-body={{"a": {{"client_secret": "{SECRET}"}}}}'],
        ["tailrace", "bench", "http://h", "--extra-body", json.dumps({"keys": [SECRET, SECRET]})],
        ["tailrace", "bench", "http://h", "--metrics-url", f"http://h:8002/metrics?token={SECRET}"],
        ["tailrace", "bench", "http://h", "--prompt", f"Summarise: {SECRET}"],
        ["tailrace", "bench", "http://h", f"--prompt={SECRET}"],
    ],
)
def test_secrets_are_masked_wherever_they_stand(words):
    said = masked(words)
    assert SECRET not in said
    assert MASK in said
    assert shlex.split(said)[:2] == ["tailrace", "bench"]


def test_what_is_no_secret_is_told_as_it_was():
    words = [
        *("tailrace", "bench", "http://h:8000/v1?api-version=3", "--rate", "5", "--output-tokens", "200-400"),
        *("--header", "x-lane: batch", "--extra-body", '{"max_tokens": 5, "top_k": 3, "stop_token_ids": [1, 2]}'),
    ]
    assert shlex.split(masked(words)) == words


@given(st.lists(st.text(max_size=20), max_size=6))
def test_any_command_line_stays_one_that_a_shell_reads(words):
    assert len(shlex.split(masked(["tailrace", *words]))) == 1 + len(words)


def test_conditions_of_a_run_against_a_vllm(tmp_path):
    """The pages of an engine as it answers; a page that hangs costs nothing but itself."""
    metrics = (
        '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 3\n'
        'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",gpu_memory_utilization="0.9"} 1\n'
    )
    info = {
        "vllm_config": {
            "model_config": {"dtype": "torch.bfloat16", "quantization": None, "model": "m"},
            "scheduler_config": {"max_num_seqs": 64, "enable_chunked_prefill": False},
        }
    }
    pages = {
        "/metrics": whole(200, metrics.encode(), "text/plain"),
        "/version": whole(200, {"version": "0.32.0"}),
        "/server_info?config_format=json": whole(200, info),
    }

    async def get(call):
        if call.path in pages:
            await call.send(pages[call.path])
        elif call.path != "/v1/models":
            await call.send(whole(404, {}))

    async def script(call):
        await call.answer()

    with serving(RawServer(script, on_get=get)) as server:
        spec = spec_for(server.url, command="tailrace bench http://h", warmup_requests=2, scrape_ns=0)
        began = time.monotonic()
        told = run(spec, tmp_path).run.header.conditions
        took = time.monotonic() - began
    assert (told.engine, told.engine_version, told.model) == ("vllm", "0.32.0", "m")
    assert (told.dtype, told.quantization) == ("bfloat16", "none")
    assert told.engine_flags["max_num_seqs"] == 64
    assert told.engine_flags["enable_chunked_prefill"] is False
    assert told.engine_flags["block_size"] == 16
    assert told.command == "tailrace bench http://h"
    assert told.warmup == "2 requests"
    assert told.prompts is not None
    assert "a=10/3" in told.prompts
    assert took < 5, "pages that never answer must not delay a run"


def test_a_server_that_says_nothing_leaves_conditions_unknown(tmp_path):
    async def script(call):
        await call.answer()

    with serving(RawServer(script)) as server:
        told = run(spec_for(server.url), tmp_path).run.header.conditions
    assert told.engine is None
    assert told.engine_version is None
    assert told.engine_flags == {}
    assert told.dtype is None
    assert told.model == "m"
    line = conditions_line(told)
    assert line.startswith("engine unknown, dtype unknown, quantization unknown, GPU ")
    assert line.endswith("engine flags unknown")


def test_a_gateway_is_asked_nothing_beyond_the_look(tmp_path):
    async def script(call):
        await call.answer()

    async def look(call):
        # As a gateway's answers have it.
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-tailrace-lane: default\r\n"
        await call.send(head + b"transfer-encoding: chunked\r\n\r\n")
        from tests.probe.raw_server import END, chunk, last, token

        await call.send(chunk(token()), chunk(last(1)), END)

    with serving(RawServer(script, look=look)) as server:
        result = run(spec_for(server.url), tmp_path)
        assert server.gets == []
    assert result.run.states == []
    assert result.run.trailer is not None
    assert ["--metrics-url names the engine's" in note for note in result.run.trailer.notes] == [True]


def test_this_machine_is_told_without_its_name():
    said = host()
    assert {"os", "python", "cpu", "cores", "memory_bytes"} <= set(said)
    assert said["cores"] >= 1
    assert said["memory_bytes"] > 1 << 26
    assert Path("/etc/hostname").read_text().strip() not in json.dumps(said)


def test_the_words_for_prompts_and_warm_up():
    spec = spec_for("http://h", mix="a=10/3", shared_prefix=64, warmup_ns=5_000_000_000)
    assert prompts_of(spec).endswith("all beginning with the same 64 tokens")
    assert SECRET not in prompts_of(spec_for("http://h", prompt=SECRET))
    assert prompts_of(spec_for("http://h", prompt="hello")).startswith("one prompt of 5 characters")
    assert warmup_of(spec) == "5 s"
    assert warmup_of(spec_for("http://h")) == "none"


@pytest.mark.parametrize(
    ("prints", "gpu", "memory"),
    [
        (
            "index, name, memory.total [MiB]\n" + "".join(f"{n}, NVIDIA A100-SXM4-80GB, 81920 MiB\n" for n in (0, 1)),
            ["NVIDIA A100-SXM4-80GB"] * 2,
            2 * 81920 << 20,
        ),
        ("No devices were found\n", [], None),
        ("NVIDIA-SMI has failed because it couldn't communicate with the driver\n", None, None),
    ],
)
def test_gpus_are_told_where_the_target_is_this_machine(tmp_path, monkeypatch, prints, gpu, memory):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{prints}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    async def script(call):
        await call.answer()

    with serving(RawServer(script)) as server:
        told = run(spec_for(server.url), tmp_path).run.header.conditions
    assert told.gpu == gpu
    assert told.gpu_memory_bytes == memory


def test_a_program_that_hangs_does_not_delay_the_run(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 30\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    async def script(call):
        await call.answer()

    began = time.monotonic()
    with serving(RawServer(script)) as server:
        told = run(spec_for(server.url), tmp_path).run.header.conditions
    assert told.gpu is None
    assert time.monotonic() - began < 5
