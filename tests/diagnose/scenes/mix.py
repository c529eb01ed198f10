"""The request mix: what is asked for, how much of it, and when."""

from __future__ import annotations

from tests.diagnose.foreign_words import facts, table
from tests.diagnose.scenes.scene import Scene, each, without
from tests.diagnose.simulated import as_gateway, served
from tests.diagnose.test_before_after_causes import one_lane
from tests.diagnose.test_scheduler_series_causes import CACHE, REPEATED, arrivals, triton
from tests.diagnose.test_work_causes import with_grammar

COUNTERS = CACHE.format(prefix="prefix_cache_")
BEAMS = table("best_of | concurrency | TPOT p50 (ms)", "1 | 16 | 30", "4 | 16 | 85")


def traffic(long_share, seed=1):
    return one_lane(as_gateway(served(seed, rate=2.0, n=1200, long_share=long_share)))


MIX = (
    Scene(
        "MIX_STRUCTURED_OUTPUT",
        "consistent",
        {"records": lambda: with_grammar(1500)},
        {"records": lambda: with_grammar(1500, everybody=True)},
        {"records": lambda: each(with_grammar(1500), grammar=None)},
        "grammar",
    ),
    Scene(
        "MIX_CACHE_MISS",
        "consistent",
        {
            "before.prom": COUNTERS.format(1_200_000, 900_000),
            "after.prom": COUNTERS.format(1_554_023, 900_000),
            "f.json": REPEATED,
        },
        {"after.prom": COUNTERS.format(1_554_023, 1_250_000)},
        {"f.json": None},
        "repeat",
    ),
    Scene(
        "MIX_BURSTY_ARRIVALS",
        "consistent",
        {
            **{name.replace("_", "."): text for name, text in triton().items()},
            "f.json": facts(window_s=60),
            "r.csv": arrivals(3),
        },
        {"r.csv": arrivals(0)},
        {"r.csv": None},
        "arrivals|send",
    ),
    Scene(
        "MIX_DECODING_OPTIONS",
        "consistent",
        {"a.md": BEAMS},
        {"a.md": BEAMS.replace("85", "31")},
        {"a.md": without(BEAMS, "concurrency")},
        "same load",
    ),
    Scene(
        "MIX_SHIFT",
        "consistent",
        {"records": lambda: traffic(0.12, 2), "before": lambda: traffic(0.02)},
        {"records": lambda: traffic(0.02, 3)},
        {"before": None},
        "before",
    ),
)
