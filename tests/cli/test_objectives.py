from __future__ import annotations

import pytest

from tailrace.cli.objectives import parse_objectives
from tailrace.gateway.config import config_from
from tailrace.govern.objectives import METRICS, QUANTILES, objective_name
from tailrace.model.errors import InputError


def test_objectives_as_typed():
    objectives = parse_objectives(["ttft_p99=500ms", "short/tpot_p999=0.1s", "e2e_p50=2s", "chunk_gap_p95=150ms"])
    assert objectives is not None
    assert objectives.bounds == {
        "ttft": {0.99: 500_000_000},
        "short/tpot": {0.999: 100_000_000},
        "e2e": {0.5: 2_000_000_000},
        "chunk_gap": {0.95: 150_000_000},
    }
    assert parse_objectives([]) is None


@pytest.mark.parametrize("bad", ["ttft=500ms", "ttft_p99", "ttft_p99=500", "foo_p99=1s", "ttft_p98=1s", "/=", ""])
def test_what_is_none_names_the_option_and_the_form(bad):
    with pytest.raises(InputError) as caught:
        parse_objectives([bad])
    assert caught.value.place.startswith("--objective")
    assert "Write" in caught.value.remedy


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("quantile", QUANTILES)
def test_the_file_and_the_command_line_read_the_same_names(metric, quantile):
    name = f"{metric}_p{quantile}"
    typed = parse_objectives([f"{name}=2s"])
    config = config_from({"backends": [{"url": "http://127.0.0.1:1"}], "objectives": {name: "2s"}})
    assert typed is not None
    assert config.lane_policies()[-1].objectives == typed
    assert objective_name(name) == (metric, QUANTILES[quantile])
