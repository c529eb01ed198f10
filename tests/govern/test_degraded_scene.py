"""The ladder against an engine that gets 1.8 times what it can serve, in virtual time: what it is for."""

from __future__ import annotations

import numpy as np
import pytest

from tailrace.govern.ladder import LadderPolicy
from tailrace.govern.rungs import DEFAULT_RUNGS
from tailrace.model.thresholds import S
from tests.govern.degraded_scene import OBJECTIVE_NS, load, play

SURGE = (30 * S, 120 * S)
SETTLED = 55 * S
"""Four rungs, each with its dwell, and what was queued before them."""


def spans(rate: float) -> list[tuple[int, float]]:
    return [(SURGE[0], rate / 2), (SURGE[1] - SURGE[0], rate), (150 * S, 6.0)]


@pytest.mark.parametrize("seed", [0, 1])
def test_the_objective_holds_with_it_and_fails_without(seed: int) -> None:
    without = play(load(seed, spans(24)), None).ttft("chat", SETTLED, SURGE[1])
    assert np.percentile(without, 99) > 10 * OBJECTIVE_NS

    scene = play(load(seed, spans(24)), LadderPolicy())
    served = scene.ttft("chat", SETTLED, SURGE[1])
    asked = [r for r in scene.requests if r.lane == "chat" and SETTLED <= r.at < SURGE[1]]
    assert np.percentile(served, 99) <= OBJECTIVE_NS
    assert len(served) > 0.75 * len(asked)
    assert sum(ttft <= OBJECTIVE_NS for ttft in without) < 0.05 * len(asked)
    # Whoever was not served was refused at once, with the ladder's own reason.
    assert {r.fate for r in asked} == {"served", "degraded"}
    # Nothing of it is left when the surge is over.
    assert scene.ladder is not None
    assert scene.ladder.step == 0
    assert [event.rung for event in list(scene.ladder.events)[:4]] == list(DEFAULT_RUNGS)
    assert len(scene.ladder.events) == 2 * len(DEFAULT_RUNGS)
    calm_again = scene.ttft("chat", 200 * S, 270 * S)
    assert np.percentile(calm_again, 99) <= OBJECTIVE_NS
    assert not any(r.rungs for r in scene.requests if r.at > 240 * S)


def test_at_the_edge_of_capacity_it_does_not_flap() -> None:
    """A quarter more than the engine serves: rungs that suffice take the load away, which looks like calm."""
    scene = play(load(2, spans(16)), LadderPolicy())
    served = scene.ttft("chat", SETTLED, SURGE[1])
    assert sum(ttft <= OBJECTIVE_NS for ttft in served) > 0.9 * len(served)
    assert scene.ladder is not None
    assert scene.ladder.steps_up <= 2 * len(DEFAULT_RUNGS)
    assert scene.ladder.step == 0


def test_without_overload_nothing_is_given_up() -> None:
    scene = play(load(3, [(120 * S, 7.0)]), LadderPolicy())
    assert scene.steps == []
    assert {r.fate for r in scene.requests} == {"served"}
