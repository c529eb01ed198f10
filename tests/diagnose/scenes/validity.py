"""Numbers that are wrong, benchmarks that measure themselves."""

from __future__ import annotations

import json

from tailrace.diagnose.observed import Histogram, Observed, Place
from tailrace.diagnose.readers.facts import observed_facts
from tests.diagnose.foreign_words import table
from tests.diagnose.logs.lines import decode, prefill
from tests.diagnose.scenes.scene import Scene, without
from tests.diagnose.test_speech_readers import LATENCY, otlp, span
from tests.diagnose.test_validity_causes import late, windows

PLACE = Place("after.prom", 3)
RUN = {"concurrency": 4, "req_s": 10.0}


def idle(*, steady=84.0, first=(1.06, 3.17), begins=True):
    out = []
    for number, low in enumerate(first):
        at = 20 * number
        out += [prefill(at)] if begins else []
        out += [decode(at + 1, made=low), decode(at + 2, made=steady), decode(at + 3, made=steady)]
    return "\n".join(out) + "\n"


def stt(durations, audio=5.0):
    more = {} if audio is None else {"audio_duration": audio}
    return "\n".join(json.dumps({"type": "stt_metrics", "label": "stt", "duration": d, **more}) for d in durations)


def stated(arm):
    return observed_facts({"facts": 1, "arms": {"x": arm}}, "f.json")


def ceiling(counts=(50.0, 40.0, 10.0), **more):
    return Observed(
        histograms=[Histogram(name="e2e", bounds=[1e3, 1e4], counts=list(counts), unit="ms", place=PLACE, **more)]
    )


VERSIONS = table("version | TTFT from /metrics (ms) | client TTFT (ms)", "0.5.4 | 100 | 300", "0.6.0 | 250 | 302")
LOOPS = table("run | concurrency | OSL | TTFT mean (ms)", "a | 32 | 1 | 900", "b | 32 | 256 | 300")
RUNS = table("run | TTFT mean (s) | ITL mean (ms)", "run 1 | 1.0 | 10", "run 2 | 1.1 | 10.1", "run 3 | 4.0 | 9.9")
WAVES = "n: 40\nconcurrency: 4\nmax TTFT: 19 s\nmean TPOT: 20 ms\nmean output tokens: 101\n"
PACE = "Max request concurrency: 1\nOutput tok/s: 292.29\nMedian ITL (ms): 8.72\n"
ZERO = "mean TTFT: 0 ms\nmean ITL: 0 ms\nmean E2E: 900 ms\n"
DILUTED = windows(([0, 10, 0, 10, 0], 4960), ([0, 20, 30, 20, 0], 9660))
FALLEN = windows(([0, 10, 0, 10, 0], 4960), ([70, 0, 0, 0, 0], 60))


def arms(p50, p99):
    return table(
        "arm | TTFT p50 (ms) | TTFT p99 (ms) | n | errors (%)", "before | 100 | 400 | 2000 | 1",
        f"after | {p50} | {p99} | 2000 | 1",
    )  # fmt: skip


VALIDITY = (
    Scene(
        "METRIC_BUG",
        "consistent",
        {"a.txt": ZERO},
        {"a.txt": ZERO.replace("0 ms", "30 ms")},
        {"a.txt": ZERO.replace("mean E2E: 900 ms\n", "")},
    ),
    Scene(
        "METRIC_UNIT",
        "consistent",
        {"a.txt": PACE},
        {"a.txt": PACE.replace("8.72", "3.5")},
        {"a.txt": PACE.replace("Max request concurrency: 1\n", "")},
    ),
    Scene(
        "INSUFFICIENT_EVIDENCE",
        "insufficient",
        {"all": stated({**RUN, "e2e_mean_ms": 2000})},
        {"all": stated({**RUN, "e2e_mean_ms": 400})},
        {"all": stated(RUN)},
    ),
    Scene(
        "BENCH_COORDINATED_OMISSION",
        "consistent",
        {"r.jsonl": late(30, lambda i: 50.0 * i)},
        {"r.jsonl": late(30, lambda _: 1.0)},
        {"r.jsonl": late(30, lambda i: 50.0 * i).replace("t_intended_ms", "note")},
    ),
    Scene(
        "METRIC_MEAN_DILUTION",
        "consistent",
        {"all": DILUTED},
        {"all": FALLEN},
        {"all": Observed(histograms=DILUTED.histograms[:1])},
    ),
    Scene(
        "METRIC_GAP",
        "consistent",
        {"m.jsonl": stt([0.0] * 4)},
        {"m.jsonl": stt([0.4, 0.0, 0.3])},
        {"m.jsonl": stt([0.0] * 4, audio=None)},
        "audio",
    ),
    Scene(
        "TRACE_GAP",
        "consistent",
        {
            "t.json": json.dumps(
                otlp(client=[span("POST", 0, 10, 1)], vllm=[span("llm_request", 8, 10, 2, 1, **LATENCY)])
            )
        },
        {
            "t.json": json.dumps(
                otlp(client=[span("POST", 0, 10, 1)], vllm=[span("llm_request", 0.2, 9.9, 2, 1, **LATENCY)])
            )
        },
        {"t.json": json.dumps(otlp(vllm=[span("llm_request", 8, 10, 2, 1, **LATENCY)]))},
    ),
    Scene(
        "METRIC_IDLE_ARTIFACT",
        "consistent",
        {"sglang.log": idle()},
        {"sglang.log": idle(steady=2.0)},
        {"sglang.log": idle(begins=False, first=(1.06,))},
    ),
    Scene(
        "METRIC_DEFINITION_CHANGE",
        "consistent",
        {"a.md": VERSIONS},
        {"a.md": VERSIONS.replace("302", "700")},
        {"a.md": without(VERSIONS, "client TTFT (ms)")},
        "client",
    ),
    Scene(
        "BENCH_CLOSED_LOOP",
        "consistent",
        {"a.md": LOOPS},
        {"a.md": LOOPS.replace("256", "1")},
        {"a.md": without(LOOPS, "OSL")},
    ),
    Scene(
        "BENCH_UNSTABLE",
        "consistent",
        {"a.md": RUNS},
        {"a.md": RUNS.replace("4.0", "1.05")},
        {"a.md": without(RUNS, "ITL mean (ms)")},
        "ITL",
    ),
    Scene(
        "BENCH_CLIENT_QUEUE",
        "suspected",
        {"a.txt": WAVES},
        {"a.txt": WAVES.replace("19 s", "0.2 s")},
        {"a.txt": WAVES.replace("n: 40\n", "")},
    ),
    Scene(
        "AB_TAIL_REGRESSED",
        "consistent",
        {"a.md": arms(50, 552)},
        {"a.md": arms(100, 410)},
        {"a.md": without(arms(50, 552), "n")},
        r"\bn\b|samples|requests",
    ),
    Scene(
        "AB_TAIL_IMPROVED",
        "consistent",
        {"a.md": arms(98, 220)},
        {"a.md": arms(98, 390)},
        {"a.md": without(arms(98, 220), "n")},
        r"\bn\b|samples|requests",
    ),
    Scene(
        "METRIC_BUCKET_CEILING",
        "consistent",
        {"all": ceiling()},
        {"all": ceiling((50.0, 50.0, 0.0))},
        {"all": ceiling(lifetime=True)},
        "second scrape",
    ),
)
