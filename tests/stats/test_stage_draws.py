import numpy as np
import pytest

from tailrace.stats.blocks import Blocks, blocks_of
from tailrace.stats.decomposition import conditional_stage_mean
from tailrace.stats.stage_draws import stage_draws


def window(seed, n):
    draw = np.random.default_rng(seed)
    stages = {
        name: draw.exponential(scale, n) for name, scale in (("queue", 100.0), ("prefill", 30.0), ("decode", 400.0))
    }
    return stages, sum(stages.values())


def test_a_window_of_one_block_resamples_to_itself():
    stages, total = window(0, 800)
    blocks = Blocks(np.zeros(800, dtype=np.int64), 1, 1.0, 1.0)
    draws = stage_draws(stages, total, blocks, 0.99, 0.005, np.random.default_rng(0), 5)
    exact = conditional_stage_mean(stages, total, 0.99, 0.005).stages
    for name, value in exact.items():
        assert draws[name] == pytest.approx([value] * 5)


@pytest.mark.parametrize("n", [300, 20_000])
def test_resamples_add_up_and_scatter_about_the_estimate(n):
    stages, total = window(1, n)
    blocks = blocks_of(total, np.zeros(n))
    whole = {**stages, "total": total}
    draws = stage_draws(whole, total, blocks, 0.99, 0.0025, np.random.default_rng(0), 100)
    assert sum(draws[name] for name in stages) == pytest.approx(draws["total"])
    exact = conditional_stage_mean(stages, total, 0.99, 0.0025)
    assert np.quantile(draws["total"], 0.025) <= exact.total <= np.quantile(draws["total"], 0.975)


def test_ranking_the_top_rows_only_changes_nothing():
    stages, total = window(2, 5_001)
    blocks = blocks_of(total, np.arange(5_001) * 0.05)
    top = stage_draws(stages, total, blocks, 0.99, 0.0025, np.random.default_rng(4), 60)
    fewer = {name: values.copy() for name, values in stages.items()}
    # The same window with its lowest row taken out of reach of any resample's quantile: below the limit all are ranked.
    lowest = int(np.argmin(total))
    keep = np.arange(5_001) != lowest
    every = stage_draws(
        {name: values[keep] for name, values in fewer.items()},
        total[keep],
        blocks._replace(of=blocks.of[keep]),
        0.99,
        0.0025,
        np.random.default_rng(4),
        60,
    )
    for name in stages:
        assert top[name] == pytest.approx(every[name], rel=0.05)
