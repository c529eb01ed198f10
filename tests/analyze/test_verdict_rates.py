"""How often the verdict is right on simulated pairs of known difference: a smaller run of `scripts/bench verdicts`."""

import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bench():
    spec = spec_from_file_location("bench_verdicts", ROOT / "bench" / "verdicts.py")
    module = module_from_spec(spec)
    sys.modules["bench_verdicts"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["bench_verdicts"]


def verdicts(bench, group, pairs):
    """Scenario -> verdicts. The group's arms are cut to 1,500 requests: what is asked is seen with fewer, too."""
    known = bench.truth(group.mix, 6000) if any(one.effect for one in group.scenarios) else None
    found = [one for i in range(pairs) for one in bench.judge((group._replace(requests=1500), i, known))]
    return {one.name: Counter(o.verdict for o in found if o.scenario == one.name) for one in group.scenarios}


@pytest.mark.tier("ci")
@pytest.mark.long("12 pairs of simulated runs")
@pytest.mark.timeout(60)
def test_no_effect_is_rarely_called_a_regression_and_30_percent_are_found(bench):
    same = verdicts(bench, bench.GROUPS[0]._replace(scenarios=(bench.NONE, bench.BETTER)), 6)
    assert same["none"]["regressed"] <= 1
    assert same["p99 -30 %"]["improved"] >= 5
    assert verdicts(bench, bench.GROUPS[2], 6)["none"]["regressed"] <= 1


def test_the_stated_power_is_that_of_the_formula(bench):
    # An effect as large as the detectable one is found with 80 %.
    assert bench.predicted_power(-0.30, 1 / 0.7 - 1) == pytest.approx(0.80, abs=0.01)
    # A rise below the tolerance is not told, however sure it is.
    assert bench.predicted_power(0.03, 0.001) < 0.01


def test_the_effect_is_what_it_says(bench):
    table = bench.simulated(5, 3000)
    known = bench.truth(bench.MIX, 3000)
    moved = bench.affected(table, -0.30, known)
    name = "e2e_ns"
    assert (moved.column(name) <= table.column(name) + 1).all()
    below = table.column(name) <= known.median[name]
    assert (moved.column(name)[below] == table.column(name)[below]).all()
    exact = bench.affected(table, 0.10, known).column(name)
    at = abs(table.column(name) - known.p99[name]).argmin()
    assert exact[at] / table.column(name)[at] == pytest.approx(1.10, abs=0.03)


@pytest.mark.parametrize("closed", [False, True])
def test_a_wait_that_the_load_generator_hides_is_told(bench, closed):
    verdict, told, _ = bench.hidden((closed, 3))
    assert told
    assert verdict not in ("improved", "no_difference")
