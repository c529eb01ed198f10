"""Arrivals from options: each form reads as it says, and contradictions are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.cli.arrivals_from import arrivals_from, natural_span_ns
from tailrace.cli.simulate import app
from tailrace.model.errors import InputError
from tailrace.model.thresholds import S
from tailrace.store.run_file import read_run
from tailrace.workload.process import ArrivalKind


def read(rate=None, arrival=None, burstiness=None, concurrency=None, **more):
    return arrivals_from(rate=rate, arrival=arrival, burstiness=burstiness, concurrency=concurrency, **more)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rate": "5"}, "poisson arrivals at 5/s"),
        ({"rate": "0.25", "arrival": "constant"}, "constant arrivals at 0.25/s"),
        ({"rate": "5", "burstiness": 0.3}, "gamma 0.3 arrivals at 5/s"),
        ({"rate": "5", "arrival": "gamma 0.3"}, "gamma 0.3 arrivals at 5/s"),
        ({"rate": "2..20 over 1m"}, "poisson arrivals at '2..20 over 60s' requests/s"),
        ({"rate": "5", "concurrency": "8"}, "poisson arrivals at 5/s, at most 8 in flight"),
        ({"arrival": "40 clients zipf 1 every 20s"}, "40 clients zipf 1 every 20s, poisson arrivals at 2/s"),
        ({"concurrency": "8"}, "closed loop of 8"),
        ({"concurrency": "1..8 over 30s"}, "closed loop of 8, coming in as '1..8 over 30s'"),
        ({"default_concurrency": 4}, "closed loop of 4"),
        ({"trace": True}, "a recorded trace at its own times"),
    ],
)
def test_what_options_mean(given: dict, said: str):
    assert str(read(**given)) == said


def test_a_constant_rate_is_a_number_and_a_shape_is_none():
    assert (read("5").rate, read("5").shape, read("5").peak_rate) == (5.0, None, 5.0)
    ramp = read("2..20 over 1m")
    assert (ramp.rate, ramp.peak_rate) == (None, 20.0)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"arrival": "constant"}, "--arrival"),
        ({"burstiness": 0.3}, "--arrival"),
        ({"rate": "5", "arrival": "poisson", "burstiness": 0.3}, "--burstiness"),
        ({"rate": "5", "arrival": "gamma 0.2", "burstiness": 0.3}, "--burstiness"),
        ({"rate": "5", "arrival": "4 clients every 3s"}, "--arrival"),
        ({"rate": "5", "concurrency": "1..8 over 30s"}, "--concurrency"),
        ({"concurrency": "0"}, "--concurrency"),
        ({"concurrency": "2.5"}, "--concurrency"),
        ({"concurrency": "8..1 over 30s"}, "--concurrency"),
        ({"rate": "@missing.csv"}, "missing.csv"),
        ({"rate": "@missing.csv sideways"}, "--rate"),
    ],
)
def test_contradictions_are_named(given: dict, place: str):
    with pytest.raises(InputError) as caught:
        read(**given)
    assert caught.value.place == place


def test_a_rate_from_a_file(tmp_path: Path):
    path = tmp_path / "rates.csv"
    path.write_text("seconds,rate\n0,5\n30,20\n40,5\n")
    assert str(read(f"@{path}").shape) == "5 for 30s, 20 for 10s, 5"
    assert str(read(f"@{path} linear").shape) == "5..20 over 30s, 20..5 over 10s, 5"
    assert str(read(f"@{path} repeat").shape) == "5 for 30s, 20 for 10s, repeat"
    assert natural_span_ns(f"@{path}", None) == 40 * S
    path.write_text("0,5\n")
    with pytest.raises(InputError, match="one row cannot repeat"):
        read(f"@{path} repeat")


def test_simulate_takes_the_same_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "sim.run"
    app(["--rate", "2 for 20s, 30 for 5s, 2 for 20s", "--arrival", "20 clients zipf 1, gamma 0.5", "--mix", "short",
         "--out", str(out)], standalone_mode=False)  # fmt: skip
    run = read_run(out)
    assert run.header.arrival.kind == ArrivalKind.GAMMA
    assert (run.header.arrival.rate, run.header.arrival.clients) == (None, "20 clients zipf 1")
    assert run.header.arrival.shape == "2 for 20s, 30 for 5s, 2 for 20s"
    at = [(record.run_offset_ns or 0) / S for record in run.records]
    assert max(at) < 45  # one round of the shape is the length, unless another is given
    inside = sum(20 <= one < 25 for one in at)
    assert inside > sum(not 20 <= one < 25 for one in at)
    assert "requests" in capsys.readouterr().out
