"""Sweeps and searches on a real socket, against a server whose capacity is known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tailrace.app.bench import bench
from tailrace.app.sweep import SearchPlan, make_directory, search, sweep
from tailrace.model.errors import InputError, TargetError
from tailrace.model.thresholds import MS, Objectives, S
from tailrace.probe.run import Interrupted
from tailrace.probe.spec import BenchSpec
from tailrace.store.run_file import read_run
from tailrace.store.sweep import Sweep, is_sweep, read_sweep
from tailrace.workload.axis import Axis, arrivals_at, parse_axis
from tailrace.workload.process import ArrivalKind
from tests.probe.raw_server import Call, RawServer, serving
from tests.probe.running import spec_for
from tests.probe.test_command import bench as command

WORK_S = 0.02


class OneAtATime:
    """A server that does one request after the other, each in 20 ms: 50 a second, and not one more."""

    def __init__(self) -> None:
        self.free = 0.0

    async def __call__(self, call: Call) -> None:
        now = asyncio.get_running_loop().time()
        self.free = max(self.free, now) + WORK_S
        await asyncio.sleep(self.free - now)
        await call.answer(tokens=1)


def unlimited(round_: Callable[[Path], Sweep], folder: Path, rounds: int = 3) -> Sweep:
    """The first of several rounds in which the load generator was not the limit, as on a machine that does more."""
    for number in range(rounds):
        done = round_(make_directory(folder / f"round-{number}"))
        if "load generator" not in done.stopped:
            return done
    pytest.skip(f"in {rounds} rounds: {done.stopped}")


def measure(spec: BenchSpec, path: Path):
    return bench(spec, out=path)


def test_a_sweep_stops_where_the_server_is_full(tmp_path: Path):
    told: list[float] = []

    def one(path: Path) -> Sweep:
        told.clear()
        return sweep(spec, axis, path, measure, on_point=lambda point: told.append(point.value), rest_s=0.1)

    with serving(RawServer(OneAtATime())) as server:
        spec = spec_for(server.url, kind=ArrivalKind.POISSON, rate=1.0, requests=None, duration_ns=2 * S)
        axis = Axis("rate", (10.0, 25.0, 90.0, 180.0))
        done = unlimited(one, tmp_path)
    assert told == [10.0, 25.0, 90.0]
    assert done.stopped.startswith("saturated at 90: the ")
    folder = next(one for one in sorted(tmp_path.iterdir(), reverse=True) if is_sweep(one))
    assert read_sweep(folder) == done
    assert [one.run for one in done.runs] == ["01-rate-10.run", "02-rate-25.run", "03-rate-90.run"]
    for one in done.runs:
        run = read_run(folder / one.run)
        assert run.header.arrival.rate == one.value
        assert run.trailer is not None
        assert run.trailer.counters["warm_up"] > 0  # each point has a warm-up of its own


def test_a_closed_sweep_stops_where_more_workers_get_no_more_done(tmp_path: Path):
    with serving(RawServer(OneAtATime())) as server:
        spec = spec_for(server.url, requests=None, duration_ns=S)
        axis = Axis("concurrency", (1.0, 2.0, 4.0, 8.0, 16.0))
        done = unlimited(lambda path: sweep(spec, axis, path, measure, rest_s=0.1), tmp_path)
    assert "at once completed no more a second than" in done.stopped
    assert len(done.runs) < 5
    assert all(40 < one.summary.requests_per_s < 52 for one in done.runs)


@pytest.mark.tier("ci")
@pytest.mark.long("a search is many runs: 45 s of load", timeout=120)
def test_a_search_finds_what_the_server_can_do(tmp_path: Path):
    objectives = Objectives(bounds={"e2e": {0.5: 200 * MS}})
    with serving(RawServer(OneAtATime())) as server:
        spec = spec_for(server.url, kind=ArrivalKind.POISSON, rate=1.0, requests=None, duration_ns=S,
                        objectives=objectives)  # fmt: skip
        plan = SearchPlan(start=16.0, budget_s=45.0)
        done = unlimited(lambda path: search(spec, plan, path, measure, rest_s=0.1), tmp_path, rounds=1)
    found = done.found
    # M/D/1 with 50/s: half of the requests are within 200 ms up to about 46/s, and none for long beyond 50/s.
    assert found["low"] is None or found["low"] < 48
    assert found["high"] is not None
    assert found["high"] > 44
    assert len(done.runs) == found["trials"]
    assert {one.standing for one in done.runs} <= {"met", "missed", "undecided"}


def test_the_command_prints_a_table_and_one_object(tmp_path: Path):
    with serving(RawServer(Call.answer)) as server:
        args = ("--sweep", "concurrency=1,2", "--duration", "300ms", "--out", "s")
        human = command(server.url, *args, cwd=tmp_path)
        machine = command(server.url, *args[:-1], "t", "--json", cwd=tmp_path)
        again = command(server.url, *args, cwd=tmp_path)
    assert "completed/s" in human.stdout
    told = json.loads(machine.stdout)
    limit = "the load generator was the limit"
    assert human.returncode == (3 if limit in human.stdout else 0), human.stderr
    assert machine.returncode == (3 if told["stopped"].startswith(limit) else 0), machine.stderr
    assert (told["axis"], told["asked"], told["kind"]) == ("concurrency", [1.0, 2.0], "sweep")
    assert "6 are the fewest" in told["knee"]["why"]
    assert (again.returncode, again.stdout) == (2, "")
    assert "has a sweep in it" in again.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--sweep", "speed=1,2"), "is no axis"),
        (("--sweep", "rate=1,2", "--find-rate"), "only one of"),
        (("--sweep", "rate=1,2", "--rate", "1..2 over 3s"), "changes with time"),
        (("--sweep", "concurrency=1,2", "--rate", "3"), "is a closed loop"),
        (("--find-rate", "--search-from", "0"), "--search-from"),
        (("--find-rate", "--search-time", "soon"), "--search-time"),
    ],
)
def test_bad_input_is_one_sentence_and_no_directory(args: tuple[str, ...], said: str, tmp_path: Path):
    done = command("http://127.0.0.1:1", *args, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("rate=1,2,4", (1, 2, 4)),
        ("rate=4,2,1,2", (1, 2, 4)),
        ("rate=1..32", (1, 2, 4, 8, 16, 32)),
        ("rate=1..20", (1, 2, 4, 8, 16, 20)),
        ("rate=1..16 in 3", (1, 4, 16)),
        ("concurrency=1..32", (1, 2, 4, 8, 16, 32)),
        ("concurrency=1..10 in 4", (1, 2, 5, 10)),
    ],
)
def test_an_axis_is_what_it_says(text: str, values: tuple[float, ...]):
    assert parse_axis(text).values == values


@pytest.mark.parametrize(
    "text", ["", "rate", "rate=1", "rate=x,2", "rate=2..1", "rate=0..4", "concurrency=1.5,3", "p=1"]
)
def test_what_is_no_axis_is_refused_with_an_example(text: str):
    with pytest.raises(InputError, match="Write 'rate=1,2,4,8'"):
        parse_axis(text)


def test_a_point_keeps_the_process_and_the_clients():
    arrivals = spec_for("http://x", kind=ArrivalKind.GAMMA, rate=3.0, concurrency=9).workload.arrivals
    at = arrivals_at(arrivals, "rate", 7.0)
    assert (at.kind, at.rate, at.concurrency) == (ArrivalKind.GAMMA, 7.0, 9)


def test_a_directory_that_is_taken_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        make_directory(tmp_path / "file")
    with pytest.raises(InputError, match="is not empty"):
        make_directory(tmp_path)
    assert make_directory(tmp_path / "a" / "b").is_dir()


def test_any_name_of_a_model_can_be_printed(tmp_path: Path):
    with serving(RawServer(Call.answer, models=("m[/x] [red]",))) as server:
        ended = command(server.url, "--sweep", "concurrency=1,2", "--duration", "200ms", "--out", "s", cwd=tmp_path)
    assert ended.returncode in (0, 3), ended.stderr
    assert "model m[/x] [red]" in ended.stdout


def test_a_point_without_a_request_in_it_is_no_interruption(tmp_path: Path):
    with serving(RawServer(Call.answer)) as server:
        spec = spec_for(server.url, kind=ArrivalKind.POISSON, rate=1.0, requests=None, duration_ns=100 * MS,
                        warmup_ns=MS)  # fmt: skip
        rare = sweep(spec, Axis("rate", (0.001, 0.002)), make_directory(tmp_path / "a"), measure, rest_s=0.0)
        found = search(spec, SearchPlan(start=0.001, most=0.001, budget_s=1.0), make_directory(tmp_path / "b"),
                       measure, rest_s=0.0)  # fmt: skip
    assert "interrupted" not in rare.stopped
    assert rare.runs[0].summary.n == 0
    assert found.stopped != "interrupted"


def broken_after(count: int, error: BaseException):
    """Measures so many points, then fails."""
    left = [count]

    def one(spec: BenchSpec, path: Path):
        left[0] -= 1
        if left[0] < 0:
            raise error
        return measure(spec, path)

    return one


@pytest.mark.parametrize(
    ("error", "stopped"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (Interrupted("before the first request"), "interrupted"),
        (TargetError("nobody answers", place="http://x"), "failed: http://x: nobody answers"),
    ],
    ids=["ctrl-c", "in the look", "target gone"],
)
def test_what_ends_it_between_two_points_leaves_those_before(error: BaseException, stopped: str, tmp_path: Path):
    with serving(RawServer(Call.answer)) as server:
        spec = spec_for(server.url, requests=None, duration_ns=100 * MS)
        axis = Axis("concurrency", (1.0, 2.0, 3.0))
        done = sweep(spec, axis, make_directory(tmp_path / "a"), broken_after(2, error), rest_s=0.0)
        plan = SearchPlan(axis="concurrency", budget_s=60.0)
        quick = msgspec.structs.replace(spec, warmup_ns=MS)
        found = search(quick, plan, make_directory(tmp_path / "b"), broken_after(1, error), rest_s=0.0)
        with pytest.raises(type(error)):
            sweep(spec, axis, make_directory(tmp_path / "c"), broken_after(0, error), rest_s=0.0)
    assert done.stopped == stopped
    assert read_sweep(tmp_path / "a") == done
    assert len(done.runs) >= 1
    assert found.stopped == stopped
    assert found.found["why"] == stopped
    assert len(read_sweep(tmp_path / "b").runs) == 1
