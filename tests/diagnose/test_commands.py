"""`tailrace compare` and `tailrace diagnose` as they are typed: exit codes, JSON, one sentence for bad input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace
from tailrace.model.measurement import ClientHealth
from tests.diagnose.simulated import UNCHUNKED, as_client, as_gateway, served
from tests.diagnose.test_readers import write_run


def tailrace_command(*args):
    source = str(Path(tailrace.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-m", "tailrace", *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": source, "COLUMNS": "200"},
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    views = {
        "bad": as_client(served(rate=6.0, **UNCHUNKED)),
        "good": as_client(served(rate=6.0, max_num_batched_tokens=2048)),
        "calm": as_client(served(rate=4.0, long_share=0.0)),
        "noise": as_client(served(9, n=200, rate=4.0, long_share=0.0)),
    }
    out = {name: write_run(folder / f"{name}.run", records) for name, records in views.items()}
    out["limited"] = write_run(
        folder / "l.run", views["bad"], client=ClientHealth(limited=True, why="its CPU was full")
    )
    return out


def test_compare_says_improved_in_json_with_its_price(runs):
    done = tailrace_command("compare", runs["bad"], runs["good"], "--json", "--fail-on", "regressed")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == "improved"
    assert set(result) >= {"schema", "verdict", "metrics", "same_work", "trade_offs", "min_detectable_pct"}
    assert set(result["metrics"]["ttft_ms.p99"]) >= {"a", "b", "delta_pct", "ci_pct"}
    assert result["same_work"]["same"] is True
    assert any("long" in text for text in result["trade_offs"])


def test_compare_exits_1_on_a_regression_that_was_asked_for(runs):
    assert tailrace_command("compare", runs["good"], runs["bad"], "--fail-on", "regressed").returncode == 1
    assert tailrace_command("compare", runs["good"], runs["bad"]).returncode == 0


def test_compare_exits_3_when_inconclusive_or_the_client_was_the_limit(runs):
    unclear = tailrace_command("compare", runs["calm"], runs["noise"], "--fail-on", "inconclusive", "--json")
    assert json.loads(unclear.stdout)["verdict"] == "inconclusive"
    assert unclear.returncode == 3
    limited = tailrace_command("compare", runs["limited"], runs["good"])
    assert limited.returncode == 3
    assert "its CPU was full" in limited.stdout


def test_compare_prints_for_people(runs):
    text = tailrace_command("compare", runs["bad"], runs["good"]).stdout
    assert text.startswith("Improved: ")
    assert "Trade-offs:" in text
    assert "n = 600" in text
    assert "95 % interval" in text


def test_diagnose_names_the_cause_first(runs):
    done = tailrace_command("diagnose", runs["bad"], "--json", "--fail-on", "found")
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert result["findings"][0]["code"] == "SCHED_PREFILL_STEALS_DECODE"
    assert set(result["findings"][0]) >= {
        "code", "layer", "stage", "level", "explains_ms", "evidence", "advice", "price", "disproof", "verify",
    }  # fmt: skip
    assert all(set(item) >= {"text", "source"} for item in result["findings"][0]["evidence"])


def test_diagnose_without_fail_on_is_0_and_prints_the_answer_first(runs):
    done = tailrace_command("diagnose", runs["bad"])
    assert done.returncode == 0
    first, _, rest = done.stdout.partition("\n")
    assert first.startswith("The prefill of long prompts stops the streams"), "the answer, before anything else"
    assert "The p99 of the longest chunk gap is " in rest.partition("\n\n")[0], "and what is slow"
    assert done.stdout.count(first) == 1, "nothing is said twice"
    for part in ("relation:", "advice:", "price:", "would disprove it:", "verify:", "n = "):
        assert part in done.stdout


def test_diagnose_says_that_nothing_is_wrong(runs):
    done = tailrace_command("diagnose", runs["calm"], "--fail-on", "found")
    assert done.returncode == 0
    assert done.stdout.startswith("Nothing is wrong: ")


def test_diagnose_takes_objectives(runs):
    done = tailrace_command("diagnose", runs["calm"], "--objective", "ttft_p99=20ms", "--json")
    assert json.loads(done.stdout)["action"] == "collect"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["diagnose", "/nowhere.run"], "no such file"),
        (["compare", "/nowhere.run", "/nowhere.run"], "no such file"),
        (["diagnose", "http://127.0.0.1:9/"], "127.0.0.1:9"),
        (["diagnose", __file__], "no evidence that is known"),
        (["diagnose", "x", "--fail-on", "everything"], "--fail-on found"),
        (["diagnose", "x", "--objective", "fast"], "ttft_p99=500ms"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(args, text):
    done = tailrace_command(*args)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_a_live_gateway_is_read_over_http(runs):
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from tailrace.export.jsonl import encode_lines

    body = b"".join(encode_lines(as_gateway(served(rate=6.0, **UNCHUNKED))))

    class Admin(BaseHTTPRequestHandler):
        def do_GET(self):
            found = self.path.startswith("/records")
            data = body if found else b"# TYPE tailrace_requests counter\ntailrace_requests_total 600\n"
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Admin)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        done = tailrace_command("diagnose", f"http://127.0.0.1:{server.server_port}", "--json")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)["findings"][0]
    assert (first["code"], first["level"]) == ("SCHED_PREFILL_STEALS_DECODE", "consistent")
