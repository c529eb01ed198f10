"""How far numbers carry: those who left, a slow start, two windows that did other work."""

from __future__ import annotations

from tests.diagnose.foreign_words import table
from tests.diagnose.scenes.scene import Scene
from tests.diagnose.simulated import as_gateway, served
from tests.diagnose.test_carrying_checks import E2E, aborts, warm
from tests.diagnose.test_metric_observations import AFTER, BEFORE, histogram


def steady(n=600):
    return as_gateway(served(rate=2.0, n=n, long_share=0.0))


LENGTHS = table("run | TTFT p99 (ms) | ISL", "before | 400 | 512", "after | 900 | 2048")

CARRYING: tuple[Scene, ...] = (
    Scene(
        "METRIC_SURVIVOR_BIAS",
        "consistent",
        {
            "before.prom": histogram(E2E, BEFORE) + aborts(10),
            "after.prom": histogram(E2E, AFTER) + aborts(65),
        },
        near={"after.prom": histogram(E2E, AFTER) + aborts(10)},
        drop={"after.prom": histogram(E2E, AFTER)},
    ),
    Scene(
        "METRIC_WARM_UP",
        "suspected",
        {"records": lambda: warm(steady(), 60, 8)},
        near={"records": steady},
        drop={"records": lambda: warm(steady(), 60, 8)[:40]},
    ),
    Scene(
        "METRIC_UNEQUAL_WORK",
        "suspected",
        {"runs.md": LENGTHS},
        near={"runs.md": table("run | TTFT p99 (ms) | ISL", "before | 400 | 512", "after | 900 | 540")},
        drop={"runs.md": table("run | TTFT p99 (ms)", "before | 400", "after | 900")},
    ),
)
