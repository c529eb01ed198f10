"""The way between the two ends: buffers, timers, pools, held events."""

from __future__ import annotations

import json
import textwrap

from tests.diagnose.altered import merged_by_timer
from tests.diagnose.evidence_texts import table
from tests.diagnose.foreign_words import facts
from tests.diagnose.logs.lines import ingress
from tests.diagnose.scenes.scene import Scene, each, without
from tests.diagnose.test_configured_rules import AT_FIFTEEN, ENVOY, requests
from tests.diagnose.test_gateway_series_causes import CHUNKS, streams
from tests.diagnose.test_leaving_causes import at_random, leaving
from tests.diagnose.test_path_causes import few

VIA = {"via gateway": {"ttft_s": [0.4, 0.5, 6.1, 6.0]}, "direct": {"ttft_s": [0.4, 0.5, 0.45, 0.5]}}
BOTH = {**VIA, "direct": {"ttft_s": [0.4, 0.5, 6.2, 6.1]}}


def lines_of(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def access(*ages):
    done = [ingress(i, took=f"{20 + i}.337", upstream=f"{20 + i}.336") for i in range(5)]
    return "\n".join([*done, *(ingress(60 + i, status=504, took=a, upstream=a, size="0") for i, a in enumerate(ages))])


SINGLY = table(CHUNKS, [("via", "v", at, 247, 500 + at * 250, 503 + at * 250 + 40 * (at % 3)) for at in range(200)])

PATHS = (
    Scene(
        "GW_PROXY_BUFFERING",
        "consistent",
        {"a.csv": streams()},
        {"a.csv": SINGLY},
        {"a.csv": without(streams(), "bytes")},
        "bytes",
    ),
    Scene(
        "GW_CHUNK_COALESCING",
        "consistent",
        {"records": lambda: merged_by_timer(few(), 50), "before": few},
        {"records": few},
        {"before": None},
        "speculates|before|without the hop",
    ),
    Scene(
        "GW_HOLDS_FIRST_EVENT",
        "consistent",
        {"f.json": facts(VIA, concurrency=1)},
        {"f.json": facts(BOTH, concurrency=1)},
        {"f.json": facts(VIA)},
        "concurrency",
    ),
    Scene(
        "GW_IDLE_TIMEOUT",
        "consistent",
        {"r.jsonl": lines_of(requests([*AT_FIFTEEN, 3.2])), "gateway.yaml": textwrap.dedent(ENVOY)},
        {"r.jsonl": lines_of(requests([2.0 + 1.7 * at for at in range(21)]))},
        {"gateway.yaml": None},
        "idle and read timeouts",
    ),
    Scene(
        "GW_UPSTREAM_TIMEOUT",
        "consistent",
        {"access.log": access("60.000"), "f.json": facts(proxy_read_timeout_s=60)},
        {"access.log": access("12.310", "31.200", "47.900")},
        {"f.json": None},
        "proxy_read_timeout",
    ),
    Scene(
        "CLIENT_TIMEOUT_BUDGET",
        "consistent",
        {"records": lambda: leaving(0.1, lambda *_: 8_000)},
        {"records": lambda: leaving(0.1, at_random)},
        {"records": lambda: each(leaving(0.1, lambda *_: 8_000), max_tokens=None)},
        "max_tokens",
    ),
)
