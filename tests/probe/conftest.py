"""The scenarios of the truth server, each played once for all tests that look at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.probe.truth_server import Played, TruthServer, play, serving_truth


@pytest.fixture(scope="session")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TruthServer]:
    with serving_truth(tmp_path_factory.mktemp("truth")) as server:
        yield server


@pytest.fixture(scope="session")
def played(truth: TruthServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Played]:
    """`played(model)`: eight requests of forty tokens at four at once, under the server's name for what they meet."""
    folder = tmp_path_factory.mktemp("played")
    kept: dict[str, Played] = {}

    def once(model: str) -> Played:
        if model not in kept:
            kept[model] = play(truth, model, folder)
        return kept[model]

    return once
