"""`examples/latency_probe.py`: what somebody can copy to a machine on which there is nothing but Python."""

import ast
import asyncio
import re
import subprocess
import sys
from pathlib import Path

from tests.probe.raw_server import HEAD, RawServer, chunk, error, serving, token, whole

PROGRAM = Path(__file__).resolve().parent.parent.parent / "examples" / "latency_probe.py"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", str(PROGRAM), *words], capture_output=True, text=True, timeout=20, check=False
    )


def completion(call):
    return call.send(whole(200, {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}))


def test_it_needs_nothing_but_the_standard_library():
    names = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(PROGRAM.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
    }
    assert names <= set(sys.stdlib_module_names)


def test_counts_and_quantiles_of_whole_answers():
    async def script(call):
        await asyncio.sleep(0.05 if call.number else 0.2)
        await completion(call)

    with serving(RawServer(script)) as server:
        done = run(server.url, "--prompt", "Yes?", "--total", "8", "--concurrency", "1", "--max-tokens", "7")
    assert done.returncode == 0, done.stderr
    assert len(server.calls) == 8
    assert {(c.path, c.body["max_tokens"], c.body["stream"]) for c in server.calls} == {
        ("/v1/chat/completions", 7, False)
    }
    assert server.calls[0].body["messages"] == [{"role": "user", "content": "Yes?"}]
    assert server.calls[0].body["model"] == "m"
    assert server.connections == 2, "one for the models, one kept for all requests"
    assert "8 of 8 answered, 0 failed, 1 at once" in done.stdout
    row = re.search(r"^whole((?: +[\d.]+){5})$", done.stdout, re.MULTILINE)[1]
    least, p50, p95, p99, most = map(float, row.split())
    assert 50 <= least <= p50 <= p95 <= p99 <= most
    assert most >= 200 > p50
    assert "p99 rests on 1 of 8 answers" in done.stdout


def test_streams_have_a_first_token():
    async def script(call):
        await call.answer(3, gap_s=0.05, first_s=0.1)

    with serving(RawServer(script)) as server:
        done = run(server.url + "/v1", "--total", "4", "--concurrency", "2", "--stream")
    assert done.returncode == 0, done.stderr
    first = float(re.search(r"^first token +([\d.]+)", done.stdout, re.MULTILINE)[1])
    all_of_it = float(re.search(r"^whole +([\d.]+)", done.stdout, re.MULTILINE)[1])
    assert 100 <= first <= all_of_it - 90


def test_when_all_fail_the_first_five_errors_are_printed():
    with serving(RawServer(lambda call: call.send(error(503, f"no room {call.number}")))) as server:
        done = run(server.url, "--total", "7", "--concurrency", "1")
    assert done.returncode == 1
    assert "0 of 7 answered, 7 failed" in done.stdout
    assert [f"no room {i}" in done.stdout for i in range(7)] == [True] * 5 + [False] * 2


def test_failures_are_no_latencies():
    async def script(call):
        if call.number % 2:
            await call.send(HEAD, chunk(token()))
            call.close()
        else:
            await call.answer(2)

    with serving(RawServer(script)) as server:
        done = run(server.url, "--total", "6", "--concurrency", "1", "--stream")
    assert done.returncode == 0
    assert "3 of 6 answered, 3 failed" in done.stdout


def test_an_answer_that_drips_for_ever_is_ended():
    async def script(call):
        await call.answer(10_000, gap_s=0.02)

    with serving(RawServer(script)) as server:
        done = run(server.url, "--total", "1", "--concurrency", "1", "--stream", "--timeout", "0.5")
    assert done.returncode == 1
    assert "not done after 0.5 s" in done.stdout


def test_nobody_there_is_one_line():
    done = run("http://127.0.0.1:9", "--total", "1")
    assert done.returncode == 1
    assert "is it up?" in done.stderr
    assert "Traceback" not in done.stderr
    assert run("localhost:8000").returncode == 2
