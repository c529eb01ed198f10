"""What a check says of a ladder, and of which it says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.app.check_ladder import judge_ladder
from tailrace.gateway.config import config_from

LOW = {"name": "low", "priority": "low", "match": {"header": {"x-lane": "low"}}}
BATCH = {"name": "default", "objectives": {"e2e_p99": "60s"}}
ON: dict[str, Any] = {"enabled": True}


@pytest.mark.parametrize(
    ("lanes", "degradation", "codes"),
    [
        ([LOW], ON, []),
        ([], ON, ["CONFIG_RUNG_WITHOUT_LANE"]),
        ([], {**ON, "rungs": ["cap", "refuse"]}, []),
        ([BATCH, LOW], ON, ["CONFIG_LADDER_BLIND"]),
        ([LOW, BATCH], {**ON, "lanes": ["low"]}, []),
        ([LOW, {**LOW, "name": "default"}], ON, ["CONFIG_LADDER_BLIND"]),
        ([LOW, {**LOW, "name": "default"}], {**ON, "enabled": False}, []),
    ],
)
def test_a_ladder_against_its_lanes(lanes: list[Any], degradation: dict[str, Any], codes: list[str]) -> None:
    config = config_from({"backends": [{"url": "http://127.0.0.1:8000"}], "lanes": lanes, "degradation": degradation})
    found = list(judge_ladder(config, "t.yaml"))
    assert [one.code for one in found] == codes
    for one in found:
        assert one.advice
        assert one.effect
        assert one.verify == "tailrace check t.yaml"
