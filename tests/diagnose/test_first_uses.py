"""First uses: slow steps that are the first of their size, or that stop coming."""

import numpy as np
import pytest

from tailrace.diagnose.first_uses import by_chance, early_by_chance, first_uses
from tailrace.model.finding import Level
from tailrace.simulate.incidents.incident import make_incident
from tailrace.testing.incident_trial import evidence_of
from tests.diagnose.simulated import found


def test_the_chance_that_slow_steps_are_first_ones_is_the_hypergeometric_tail():
    assert by_chance(10, 2, 3, 1) == pytest.approx(1 - (8 * 7 * 6) / (10 * 9 * 8))
    assert by_chance(10, 2, 3, 0) == pytest.approx(1.0)
    assert by_chance(1000, 7, 5, 5) < 1e-9


@pytest.mark.parametrize("n", [1, 3, 8, 15, 16, 40])
def test_the_chance_of_early_places_is_that_of_uniform_ones(n):
    rng = np.random.default_rng(n)
    places = rng.random((4000, n))
    own = rng.random(n) * 0.6
    seen = float((places.sum(axis=1) <= own.sum()).mean())
    assert early_by_chance(own) == pytest.approx(seen, abs=0.03)
    assert early_by_chance(np.full(n, 0.5)) == pytest.approx(0.5, abs=0.01)


def test_an_engine_that_compiles_is_told_from_one_that_hangs_or_pauses():
    from tailrace.diagnose.engine import diagnose

    evidence = evidence_of(make_incident("compiling", 1, "test", longest=360))
    uses = first_uses(evidence.now)
    assert uses is not None
    assert uses.holds
    assert uses.later_ms < 100 < np.median(uses.ms)
    result = diagnose(evidence)
    finding = found(result, "COMPUTE_JIT")
    assert result.findings[0] is finding
    assert finding.level is Level.SUSPECTED
    assert "steps with a prefill" in finding.statement
    assert found(result, "ENGINE_STALL") is None


@pytest.mark.parametrize("kind", ["engine_hang", "gc_pause"])
def test_what_recurs_or_comes_once_is_no_first_use(kind):
    uses = first_uses(evidence_of(make_incident(kind, 0, "test", longest=360)).now)
    assert uses is None or not uses.holds
