"""The degradation ladder and the streams' demands against the lanes that they are about."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.app.config_finding import config_finding
from tailrace.gateway.config import Config
from tailrace.govern.rungs import Rung
from tailrace.model.check import CheckFinding, Weight


def judge_ladder(config: Config, name: str) -> Iterator[CheckFinding]:
    """What a valid ladder cannot do with these lanes."""
    ladder = config.degradation
    if not ladder.enabled:
        return
    policies = config.lane_policies()
    names = [lane.name for lane in policies if lane.priority <= 0] if ladder.lanes is None else ladder.lanes
    if not any(lane.name in names and lane.objectives.bounds.get("ttft") for lane in policies):
        yield config_finding(
            "CONFIG_LADDER_BLIND",
            Weight.WARNING,
            name,
            "degradation.lanes",
            "The ladder watches no lane that has a TTFT objective: waits and first tokens cannot move it, only the "
            "engine's own signals.",
            advice="degradation: {lanes: [NAME]}, a lane with objectives: {ttft_p99: 500ms}",
            effect="Waits and first tokens of that lane take rungs.",
            price="None.",
        )
    if Rung.LOW_WAITS in ladder.rungs and not any(lane.priority > 0 for lane in policies):
        yield config_finding(
            "CONFIG_RUNG_WITHOUT_LANE",
            Weight.ADVICE,
            name,
            "degradation.rungs",
            "The rung low_waits gives nothing up: no lane is of low priority. It only takes its time before the next.",
            advice="priority: low for the lanes whose work can wait, or leave the rung out.",
            effect="Under load, work that can wait leaves its places to the rest.",
            price="It waits, and may be refused, first.",
        )
