"""Two arms in turn, for real: each run a child that loads a socket."""

import json
import signal
import subprocess
import time

import pytest

from tailrace.app.ab import AbOptions, _run, _whole, plan_runs, run_ab
from tailrace.model.errors import InputError, RunFileError, TargetError
from tailrace.model.measurement import Verdict
from tailrace.store.run_file import RunHeader, RunWriter, read_run
from tests.children import child_env, tailrace_command
from tests.probe.raw_server import RawServer, serving

pytestmark = pytest.mark.long("every run is a process of its own", timeout=60)

LOAD = ("--concurrency", "2", "--requests", "24", "--mix", "a=10/3", "--model", "m")


def server(first_s):
    async def script(call):
        # A little later each time: equal answers would have no spread to judge by.
        await call.answer(3, first_s=first_s + 0.001 * (call.number % 5))

    return RawServer(script)


def options(folder, *urls, rounds=3, bench=LOAD, **more):
    given = {"settle_s": 0.0, "ready_within_s": 5.0} | more
    return AbOptions(urls=(urls[0], urls[-1]), rounds=rounds, folder=folder / "ab", bench=bench, **given)


def test_a_large_change_is_decided_and_the_runs_are_kept(tmp_path):
    steps = []
    with serving(server(0.2)) as slow, serving(server(0.03)) as fast:
        result = run_ab(options(tmp_path, slow.url, fast.url), steps.append)
    assert result.verdict is Verdict.IMPROVED, result.summary
    assert result.rounds.n == 3
    effect = result.rounds.effects["ttft_ms.p50"]
    assert effect.better == 3
    assert effect.excludes_zero
    assert -90 < effect.mean_pct < -70
    assert [run.file for run in result.runs] == [
        one.file for one in plan_runs(options(tmp_path, "http://a", "http://b"))
    ]
    assert {len(read_run(tmp_path / "ab" / run.file).records) for run in result.runs} == {24}
    seeds = {run.file[:2]: read_run(tmp_path / "ab" / run.file).header.arrival.seed for run in result.runs}
    assert sorted(seeds.values()) == [0, 1, 2], "each round its own seed, the same for both arms"
    assert [step.name for step in steps].count("measured") == 6


@pytest.mark.tier("ci")
def test_equal_arms_are_not_told_apart(tmp_path):
    with serving(server(0.05)) as one, serving(server(0.05)) as two:
        result = run_ab(options(tmp_path, one.url, two.url), lambda _: None)
    assert result.verdict in (Verdict.INCONCLUSIVE, Verdict.NO_DIFFERENCE)


def test_a_command_switches_what_stands_behind_one_address(tmp_path):
    delay, log = [0.0], tmp_path / "log"

    async def script(call):
        await call.answer(3, first_s=0.15 if log.read_text().split()[-1] == "a" else 0.02)
        delay[0] += 1

    with serving(RawServer(script)) as one:
        switch = f'test "$TAILRACE_ARM" = {{arm}} && echo {{arm}} >> {log}'
        result = run_ab(options(tmp_path, one.url, switch=switch, rounds=2), lambda _: None)
    assert [run.arm for run in result.runs] == log.read_text().split()
    assert result.rounds.effects["ttft_ms.p50"].better == 2
    assert "rounds say nothing" in result.rounds.warnings[0]


@pytest.mark.tier("ci")
def test_more_rounds_go_on_where_fewer_ended(tmp_path):
    with serving(server(0.02)) as one, serving(server(0.02)) as two:
        run_ab(options(tmp_path, one.url, two.url, rounds=1), lambda _: None)
        before = (tmp_path / "ab" / "01-a.run").stat().st_mtime_ns
        steps = []
        result = run_ab(options(tmp_path, one.url, two.url, rounds=2), steps.append)
        assert {step.planned.round for step in steps} == {2}
        assert (tmp_path / "ab" / "01-a.run").stat().st_mtime_ns == before
        assert result.rounds.n == 2
        with pytest.raises(InputError, match="another A/B"):
            run_ab(options(tmp_path, two.url, one.url), lambda _: None)


def test_of_two_rounds_one_begins_with_either_arm(tmp_path):
    for seed in range(20):
        planned = plan_runs(options(tmp_path, "http://a", "http://b", rounds=8, seed=seed))
        first = [one.arm for one in planned][::2]
        assert [sorted(first[i : i + 2]) for i in range(0, 8, 2)] == [["a", "b"]] * 4
    orders = {
        tuple(one.arm for one in plan_runs(options(tmp_path, "http://a", "http://b", rounds=8, seed=seed)))
        for seed in range(20)
    }
    assert len(orders) > 5, "a disturbance cannot keep time with the arms"


def test_what_does_not_come_up_is_named(tmp_path):
    with serving(server(0.02)) as one:
        with pytest.raises(InputError, match="did not bring up arm") as caught:
            run_ab(options(tmp_path, one.url, switch="echo no such unit >&2; exit 5"), lambda _: None)
        assert "no such unit" in str(caught.value)
        with pytest.raises(InputError, match="not done in time"):
            run_ab(options(tmp_path, one.url, switch="sleep 60", switch_within_s=0.3), lambda _: None)
        with pytest.raises(TargetError, match="not up after"):
            run_ab(options(tmp_path, "http://127.0.0.1:9", one.url, ready_within_s=0.3), lambda _: None)
    with pytest.raises(InputError, match="nothing switches"):
        options(tmp_path, "http://a", "http://a")


def test_the_command_refuses_at_once_what_bench_would_refuse_later(tmp_path):
    def said(*words):
        done = subprocess.run(
            tailrace_command("ab", *words), capture_output=True, text=True, env=child_env(), cwd=tmp_path, check=False
        )
        assert done.returncode == 2, done.stdout
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "--rats" in said("--a", "http://x", "--b", "http://y", "--rats", "5")
    assert "two arms" in said("--a", "http://x")
    assert "belongs before" in said("--a", "http://x", "--b", "http://y", "--rate", "5", "--", "--json")
    assert not list(tmp_path.iterdir())


def test_an_option_that_neither_has_is_one_sentence():
    done = subprocess.run(
        [*tailrace_command("ab"), "--a", "http://a:1", "--b", "http://b:1", "--nonsense", "5"],
        capture_output=True, text=True, timeout=20, env=child_env(), check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("tailrace ab: ab: No such option: --nonsense")
    assert "`tailrace bench --help` shows them" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_judges_the_whole_rounds_and_ends_with_130(tmp_path):
    async def script(call):
        await call.answer(3, first_s=0.02 if len(calls) < 40 else 0.5)
        calls.append(1)

    calls: list[int] = []
    with serving(RawServer(script)) as one, serving(RawServer(script)) as two:
        child = subprocess.Popen(
            tailrace_command(
                "ab", "--a", one.url, "--b", two.url, "--rounds", "4", "--settle", "0", "--out", str(tmp_path / "ab"),
                "--json", "--concurrency", "1", "--requests", "20", "--mix", "a=10/3", "--model", "m",
            ),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=child_env(),
        )  # fmt: skip
        deadline = time.monotonic() + 30
        while len(calls) < 42:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        out, said = child.communicate(timeout=20)
    assert child.returncode == 130, said
    result = json.loads(out)
    assert result["interrupted"] is True
    assert result["rounds"]["n"] == 1
    assert "Traceback" not in said


def _started(one, two, folder):
    """An A/B of long runs, and a run of it under way."""
    return subprocess.Popen(
        tailrace_command(
            "ab", "--a", one.url, "--b", two.url, "--rounds", "2", "--settle", "0", "--out", str(folder),
            "--concurrency", "1", "--duration", "60", "--mix", "a=10/3", "--model", "m",
        ),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=child_env(),
        # Whoever runs these tests under nohup has it ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509
    )  # fmt: skip


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda one: one.name)
def test_however_it_is_ended_no_load_generator_is_left_behind(how, tmp_path):
    calls: list[float] = []

    async def script(call):
        calls.append(time.monotonic())
        await call.answer(3, first_s=0.02)

    with serving(RawServer(script)) as one, serving(RawServer(script)) as two:
        child = _started(one, two, tmp_path / "ab")
        deadline = time.monotonic() + 15
        while len(calls) < 5:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        child.send_signal(how)
        _, said = child.communicate(timeout=15)
        assert child.returncode == (-9 if how is signal.SIGKILL else 130), said
        time.sleep(2 if how is signal.SIGKILL else 0.2)
        before = len(calls)
        time.sleep(0.5)
        assert len(calls) == before
    assert "Traceback" not in said


def test_a_run_that_was_killed_at_its_beginning_is_measured_again(tmp_path):
    (tmp_path / "01-a.run").write_bytes(b"")
    whole = tmp_path / "whole.run"
    with RunWriter(whole, RunHeader()):
        pass
    (tmp_path / "01-b.run").write_bytes(whole.read_bytes()[:40])
    assert not _whole(tmp_path / "01-a.run")
    assert not _whole(tmp_path / "01-b.run")
    (tmp_path / "02-a.run").write_bytes(b"something else")
    with pytest.raises(RunFileError):
        _whole(tmp_path / "02-a.run")


def test_a_server_that_the_command_leaves_in_the_background_is_not_waited_for(tmp_path):
    began = time.monotonic()
    code, out, said = _run(["/bin/sh", "-c", "sleep 5 & echo up; echo x >&2"], within_s=4, arm="a")
    assert time.monotonic() - began < 3
    assert (code, out, said) == (0, "up\n", "x\n")
