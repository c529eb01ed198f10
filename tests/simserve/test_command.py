"""`tailrace engine` and `tailrace simulate` as commands."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import urllib.request

import pytest

from tests.children import child_env, tailrace_command


def tailrace(*args: str, timeout: float = 15.0) -> subprocess.CompletedProcess:
    return subprocess.run(
        tailrace_command(*args), capture_output=True, text=True, timeout=timeout, env=child_env(), check=False
    )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_engine_is_ready_answers_and_ends_within_two_seconds(start_tailrace, how):
    child = start_tailrace("engine", "--port", "0", "--json", "--no-chunked-prefill", "--max-num-seqs", "3")
    assert child.ready["ready"] is True
    assert child.ready["simulated"] is True
    assert child.ready["pid"] == child.popen.pid
    with urllib.request.urlopen(child.ready["url"] + "/knobs", timeout=5) as answer:
        knobs = json.load(answer)
    assert (knobs["enable_chunked_prefill"], knobs["max_num_seqs"]) == (False, 3)
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 5000, "ignore_eos": True}
    request = urllib.request.Request(child.ready["url"] + "/v1/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=5) as stream:
        stream.readline()
        begin = time.monotonic()
        child.popen.send_signal(how)
        rest = stream.read()
    assert child.popen.wait(timeout=5) == 0
    assert time.monotonic() - begin < 2
    # A stream that was cut says so, as vLLM's does.
    assert b'"type":"InternalServerError"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")


def test_without_json_there_is_a_banner_that_says_simulated(start_child):
    child = start_child(*tailrace_command("engine", "--port", "0"))
    end = time.monotonic() + 15
    while len(child.stdout_lines) < 4 and time.monotonic() < end:
        time.sleep(0.05)
    text = "\n".join(child.stdout_lines)
    assert "Simulated engine (a100-llama3-8b)" in text
    assert "/v1" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--preset", "tpu"), "--preset: there is no preset 'tpu'. Use one of a100-llama3-8b, h100-llama3-8b."),
        (("--max-num-seqs", "0"), "max_num_seqs: 0 is out of range. Use a number of at least 1."),
        (("--policy", "lifo"), "policy: Invalid enum value 'lifo'"),
        (("--time-scale", "0"), "--time-scale: 0.0 is not above 0. 1 is the preset's speed."),
        (("--time-scale", "nan"), "--time-scale: nan is not above 0. 1 is the preset's speed."),
        (("--time-scale", "inf"), "--time-scale: inf is not above 0. 1 is the preset's speed."),
        (("--step-overhead-ms", "inf"), "--step-overhead-ms: inf is no number of this kind. Give a finite number."),
    ],
)
def test_bad_options_are_one_sentence(args, message):
    done = tailrace("engine", "--port", "0", *args)
    assert done.returncode == 2
    assert done.stderr == f"tailrace engine: {message}\n"
    assert done.stdout == ""


def test_a_port_in_use_names_itself_and_the_remedy():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = tailrace("engine", "--port", str(port))
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port} (" in done.stderr
    assert done.stderr.endswith("Choose another port, or 0 for a free one.\n")
    assert "Traceback" not in done.stderr
