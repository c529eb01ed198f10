"""A run of ours on real sockets, in the words of tools that the truth server was seen to mislead."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import uvloop

from tailrace.analyze.as_tool import as_tool
from tailrace.diagnose.readers.source import read_source
from tailrace.export.jsonl import from_public_json
from tailrace.export.load_tools import EXPORTERS
from tailrace.probe.run import run_bench
from tailrace.probe.spec import BenchSpec
from tailrace.store.run_file import Run, read_run
from tailrace.workload.arrivals import Arrivals
from tailrace.workload.mix import parse_mix
from tailrace.workload.plan import Workload
from tests.children import child_env, health_code, tailrace_command
from tests.probe.truth_server import TruthServer

pytestmark = pytest.mark.needs("shared")


@pytest.fixture(scope="module")
def truth(tmp_path_factory, free_port_of_module: int):
    log = tmp_path_factory.mktemp("truth") / "truth.jsonl"
    server = TruthServer(log, free_port_of_module)
    yield server
    server.process.terminate()
    server.process.wait(10)


@pytest.fixture(scope="module")
def free_port_of_module() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def measured(truth: TruthServer, scenario: str, folder: Path) -> Run:
    spec = BenchSpec(
        url=truth.url,
        model=scenario,
        workload=Workload(arrivals=Arrivals(concurrency=4), mix=parse_mix("a=20/40")),
        requests=8,
    )
    uvloop.run(run_bench(spec, out=folder / f"{scenario}.run"))
    return read_run(folder / f"{scenario}.run")


def p50(tool: str, name: str, run: Run) -> float:
    value = next(one.p50 for one in as_tool(tool, run).metrics if one.name == name)
    assert value is not None
    return value


@pytest.mark.parametrize(
    ("scenario", "tool", "name", "wrong", "true_name", "true"),
    [
        ("late_usage", "sglang", "TPOT", 35.4, "tpot_ms", 20.0),
        ("late_done", "sglang", "TPOT", 32.9, "tpot_ms", 20.0),
        ("empty_first", "vllm", "TPOT", 27.3, "tpot_ms", 20.0),
        ("spec", "guidellm", "time_per_output_token_ms", 15.6, "tpot_ms", 13.3),
    ],
)
def test_a_number_that_misled_is_shown_beside_the_right_one(
    scenario: str, tool: str, name: str, wrong: float, true_name: str, true: float, truth: TruthServer, tmp_path: Path
) -> None:
    for _ in range(3):  # a busy host moves stamps; what is measured wrong is far from what is right
        run = measured(truth, scenario, tmp_path)
        view = as_tool(tool, run)
        ours = next(one.ours for one in view.metrics if one.ours_name == true_name)
        assert ours is not None
        if p50(tool, name, run) == pytest.approx(wrong, rel=0.1) and ours.mean == pytest.approx(true, rel=0.1):
            return
    assert (p50(tool, name, run), ours.mean) == pytest.approx((wrong, true), rel=0.1)


def test_a_run_of_ours_comes_back_from_every_form(truth: TruthServer, tmp_path: Path) -> None:
    run = measured(truth, "spec", tmp_path)
    for form, export in EXPORTERS.items():
        path = tmp_path / form
        path.write_bytes(b"".join(export(run).chunks))
        back = read_source(str(path), lambda line, place: from_public_json(line, place=place)).run
        assert back is not None
        assert sorted(record.ttft_ns or 0 for record in back.records) == sorted(
            record.ttft_ns or 0 for record in run.records
        )
        assert sorted(record.tpot_ns or 0 for record in back.records) == pytest.approx(
            sorted(record.tpot_ns or 0 for record in run.records), abs=2
        )


def test_bench_prints_it_beside_its_own(truth: TruthServer, tmp_path: Path) -> None:
    options = (
        "--model",
        "spec",
        "--requests",
        "8",
        "--concurrency",
        "4",
        "--prompt-tokens",
        "20",
        "--output-tokens",
        "40",
    )
    command = tailrace_command(
        "bench", truth.url, *options, "--as", "guidellm", "--out", str(tmp_path / "a.run"), "--json"
    )
    done = subprocess.run(command, env=child_env(), capture_output=True, text=True, timeout=18, check=False)
    assert done.returncode == health_code(tmp_path / "a.run"), done.stderr
    printed = json.loads(done.stdout)
    assert (printed["n"], printed["as_tool"]["tool"], printed["as_tool"]["successes"]) == (8, "guidellm", 8)
    assert printed["as_tool"]["metrics"][2]["n"] == 8 * 39
