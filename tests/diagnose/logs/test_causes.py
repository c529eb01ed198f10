# ruff: noqa: E501  (lines of logs are as long as they are)
"""What logs lead to, what they must not lead to, and what falls with each dropped input."""

from __future__ import annotations

import json

import pytest

from tailrace.diagnose.causes.compute.jit import Jit
from tailrace.diagnose.causes.gateway.cancel_unattributed import CancelUnattributed
from tailrace.diagnose.causes.gateway.client_timeout_budget import ClientTimeoutBudget
from tailrace.diagnose.causes.gateway.retry_storm import RetryStorm
from tailrace.diagnose.causes.gateway.upstream_timeout import UpstreamTimeout
from tailrace.diagnose.causes.mix.structured_output import StructuredOutput
from tailrace.diagnose.causes.scheduler.admission_deadlock import AdmissionDeadlock
from tailrace.diagnose.causes.scheduler.engine_stall import EngineStall
from tailrace.diagnose.causes.scheduler.kv_preemption import KvPreemption
from tailrace.diagnose.causes.scheduler.prefill_steals_decode import PrefillStealsDecode
from tailrace.diagnose.causes.scheduler.queue_saturation import QueueSaturation
from tailrace.diagnose.causes.validity.idle_artifact import IdleArtifact
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.readers.facts import observed_facts
from tailrace.diagnose.readers.logs.log import read_log_text
from tailrace.diagnose.readers.requests import REQUESTS
from tailrace.model.finding import Level
from tests.diagnose.logs.lines import decode, ingress, jit, prefill, uvicorn, v0, v1


def seen(*logs: str, facts: dict | None = None, requests: list[dict] | None = None, tmp_path=None) -> Observed:
    parts = [read_log_text(text, f"{number}.log") for number, text in enumerate(logs)]
    if facts is not None:
        parts.append(observed_facts({"facts": 1, "context": facts}, "facts.json"))
    if requests is not None:
        path = tmp_path / "requests.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in requests))
        parts.append(REQUESTS.read(path, path.name))
    return Observed.joined(parts)


def lines(*parts: str) -> str:
    return "\n".join(parts)


# -- ENGINE_STALL

NORMAL = [v1(0, prompt=900, made=60, running=6), v1(10, prompt=800, made=70, running=7)]
BACK = v1(60, prompt=220, made=70, running=7)


def stalled(n=3, *, prompt=0.0, made=0.5, running=7, waiting=3, kv=6.0):
    return [v1(20 + 10 * i, prompt=prompt, made=made, running=running, waiting=waiting, kv=kv) for i in range(n)]


@pytest.mark.parametrize("made", [0.0, 0.5])
@pytest.mark.parametrize("n", [2, 4])
def test_an_engine_that_stands_still(made, n):
    found = EngineStall().observe(seen(lines(*NORMAL, *stalled(n, made=made), BACK)))
    assert found is not None
    assert found.level is Level.CONSISTENT
    assert f"{made / 7:.2f} tok/s per stream" in found.statement
    assert f"{n} lines in a row ({10 * n} s)" in found.statement
    assert "py-spy" in found.advice
    assert found.explains_ms == 1e4 * n


def test_v0_and_many_engines_stand_still_too():
    old = lines(
        *(v0(5 * i, made=60, running=6) for i in range(3)), *(v0(15 + 5 * i, made=0.0, running=6) for i in range(3))
    )
    assert EngineStall().observe(seen(old)) is not None
    one = lines(
        *(v1(10 * i, engine=e, made=0.0 if e == 2 and i > 1 else 90, running=3) for i in range(5) for e in range(4))
    )
    found = EngineStall().observe(seen(one))
    assert found is not None
    assert found.evidence[0].source == "0.log:11"


@pytest.mark.parametrize(
    "log",
    [
        lines(*NORMAL, *stalled(1), BACK),  # one line only: the first after idle time
        lines(*NORMAL, *stalled(3, prompt=2400.0), BACK),  # a prefill is in progress
        lines(*NORMAL, *stalled(3, kv=96.0), BACK),  # the cache is full
        lines(*NORMAL, *stalled(3, running=0, waiting=0, made=0.0), BACK),  # nobody is there
        lines(*(v1(10 * i, made=9.0, running=3) for i in range(8))),  # a slow engine is no standing one
        lines(*(decode(i, made=0.4) for i in range(4))),  # whether a prefill is in progress is not told
    ],
)
def test_what_is_no_stall(log):
    assert EngineStall().observe(seen(log)) is None


def test_a_long_prefill_counted_at_its_end_is_a_rival():
    log = lines(
        v1(0, made=60, running=2), *stalled(3, made=0.0, running=2, waiting=0), v1(50, prompt=7200, made=40, running=3)
    )
    found = EngineStall().observe(seen(log))
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert found.rivals == ["SCHED_PREFILL_STEALS_DECODE"]
    assert found.missing == ["the prompt lengths of that time"]


def test_without_a_usual_rate_it_is_only_suspected():
    found = EngineStall().observe(seen(lines(*stalled(3))))
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "usual rate" in found.missing[0]


def test_one_stream_alone_may_wait_for_its_own_input():
    log = lines(*(v1(10 * i, made=12.0, running=1) for i in range(3)), *stalled(3, made=0.0, running=1, waiting=1))
    found = EngineStall().observe(seen(log))
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "a second stream" in found.missing[0]


def test_a_full_encoder_cache_and_compiling_are_rivals():
    full = EngineStall().observe(seen(lines(*NORMAL, *stalled(3)), facts={"encoder_cache_usage_pct": 100}))
    assert full is not None
    assert (full.level, full.rivals) == (Level.SUSPECTED, ["ASR_SILENT_HANG"])
    compiling = EngineStall().observe(seen(lines(*NORMAL, stalled(1)[0], jit(25), *stalled(3)[1:])))
    assert compiling is not None
    assert compiling.rivals == ["COMPUTE_JIT"]


def test_health_is_no_proof_of_progress():
    found = EngineStall().observe(seen(lines(*NORMAL, *stalled(3)), uvicorn(path="/health")))
    assert found is not None
    assert any("no proof of progress" in item.text for item in found.evidence)


# -- SCHED_ADMISSION_DEADLOCK


def stuck(n=3, **more):
    return [v1(20 + 10 * i, made=0.0, running=0, waiting=4, kv=0.0, **more) for i in range(n)]


def test_a_queue_that_nothing_can_leave():
    found = AdmissionDeadlock().observe(
        seen(lines(*NORMAL, *stuck()), facts={"max_model_len": 131072, "kv_capacity_tokens": 77088})
    )
    assert found is not None
    assert found.level is Level.CONSISTENT
    assert "4 requests wait" in found.statement
    assert any("77,088" in item.text for item in found.evidence)


def test_swapped_requests_are_a_rival_of_a_deadlock():
    old = lines(*(v0(5 * i, made=0.0, running=0, swapped=2, pending=98, kv=99.0) for i in range(3)))
    found = AdmissionDeadlock().observe(seen(old))
    assert found is not None
    assert (found.level, found.rivals) == (Level.SUSPECTED, ["SCHED_KV_PREEMPTION"])


@pytest.mark.parametrize(
    "log",
    [
        lines(*NORMAL, *stuck(1), BACK),
        lines(*NORMAL, *stuck(3, prompt=100.0)),
        lines(*(v1(10 * i, made=0.0, running=0, waiting=0) for i in range(4))),
        lines(*(v1(10 * i, made=5.0, running=1, waiting=4) for i in range(4))),
    ],
)
def test_what_is_no_deadlock(log):
    assert AdmissionDeadlock().observe(seen(log)) is None


def test_a_log_of_prefill_lines_only_does_not_tell_whether_tokens_came():
    text = lines(*(prefill(i).replace("#queue-req: 0", "#queue-req: 4") for i in range(3)))
    found = AdmissionDeadlock().observe(seen(text))
    assert found is None or found.level is Level.SUSPECTED


# -- SCHED_PREFILL_STEALS_DECODE


def stolen(rate=2400.0, made=0.2, running=3, n=6, kv=12.0):
    return [v1(10 * i, prompt=rate, made=made, running=running, kv=kv) for i in range(n)]


ALONE = v1(70, made=27.4, running=1)


@pytest.mark.parametrize(
    ("rate", "budget", "key", "step"),
    [
        (2400.0, 8192, "max_num_batched_tokens", "8192/2400 = 3.41 s"),
        (5000.0, 16384, "chunked_prefill_size", "16384/5000 = 3.28 s"),
        (9000.0, 32768, "prefill_piece_tokens", "32768/9000 = 3.64 s"),
    ],
)
def test_prompts_take_the_steps(rate, budget, key, step):
    found = PrefillStealsDecode().observe(seen(lines(*stolen(rate), ALONE), facts={key: budget}))
    assert found is not None
    assert found.level is Level.CONSISTENT
    assert step in found.relation
    assert "retrieve fewer chunks" in found.advice


def test_the_budget_may_stand_in_the_start_up_log_and_the_rate_alone_in_the_facts():
    start = "(APIServer pid=7) INFO 05-11 11:21:11 [api_utils.py:286] non-default args: {'max_num_batched_tokens': 8192, 'model': 'm'}"
    found = PrefillStealsDecode().observe(seen(lines(start, *stolen()), facts={"decode_tok_s_alone": [26, 29]}))
    assert found is not None
    assert found.level is Level.CONSISTENT
    assert "8192/2400 = 3.41 s" in found.relation


def test_without_the_budget_it_is_only_suspected():
    found = PrefillStealsDecode().observe(seen(lines(*stolen(), ALONE)))
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "max_num_batched_tokens" in found.missing[0]


def test_gaps_that_no_step_explains_are_said():
    facts = {"max_num_batched_tokens": 512, "gap_s": [5, 7]}
    found = PrefillStealsDecode().observe(seen(lines(*stolen(), ALONE), facts=facts))
    assert found is not None
    assert found.level is Level.SUSPECTED


def test_a_full_cache_is_its_rival():
    found = PrefillStealsDecode().observe(seen(lines(*stolen(kv=99.0), ALONE), facts={"max_num_batched_tokens": 8192}))
    assert found is not None
    assert found.rivals == ["SCHED_KV_PREEMPTION"]


@pytest.mark.parametrize(
    "log",
    [
        lines(*stolen(made=60.0), ALONE),  # the streams go on
        lines(*stolen(running=1), ALONE),  # nobody decodes beside it
        lines(*stolen(n=1), *(v1(70 + 10 * i, made=27.4) for i in range(5))),  # one line
        lines(*(v1(10 * i, made=27.4, running=2) for i in range(5))),  # no prompt at all
        lines(*stolen()),  # what a stream makes alone is not known
    ],
)
def test_what_steals_nothing(log):
    assert PrefillStealsDecode().observe(seen(log, facts={"max_num_batched_tokens": 8192})) is None


def step(number, took, tokens, streams):
    return (
        f"(APIServer pid=7) INFO 11-29 11:32:{number:02d} [loggers.py:199] Engine 000: Iteration({number}): {1 if tokens else 0} "
        f"context requests, {tokens} context tokens, {streams} generation requests, {streams} generation tokens, iteration "
        f"elapsed time: {took:.2f} ms, CPU KV cache usage: 5.6%"
    )


def test_a_line_a_step_proves_it():
    text = lines(*(step(i, 12.0, 0, 6) for i in range(10)), step(20, 9883.52, 4054, 6), step(30, 7256.98, 4054, 7))
    found = PrefillStealsDecode().observe(seen(text))
    assert found is not None
    assert found.level is Level.PROVEN
    assert "4,054 prompt tokens in 9,884 ms" in found.statement
    chunked = lines(*(step(i, 150.0, 250, 6) for i in range(10)), *(step(20 + i, 12.0, 0, 6) for i in range(9)))
    assert PrefillStealsDecode().observe(seen(chunked)) is None
    alone = lines(*(step(i, 12.0, 0, 6) for i in range(10)), step(20, 9883.52, 4054, 0))
    assert PrefillStealsDecode().observe(seen(alone)) is None


def test_stated_numbers_alone_are_a_suspicion():
    facts = {"max_num_batched_tokens": 8192, "prefill_tok_s": 2400, "gap_s": [3, 4]}
    found = PrefillStealsDecode().observe(seen(facts=facts))
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "8192/2400 = 3.41 s" in found.relation
    assert PrefillStealsDecode().observe(seen(facts=facts | {"gap_s": [20, 30]})) is None
    assert PrefillStealsDecode().observe(seen(facts={"max_num_batched_tokens": 8192, "gap_s": [3, 4]})) is None


def beside(rates=(40.0, 27.0, 18.0), pauses=(0.1, 28.0, 65.0)):
    return [
        {"id": f"s{i}", "t_send_ms": 9000 * i, "t_first_ms": 9000 * i + 2000, "t_last_ms": 9000 * i + 30000, "status": "ok",
         "output_tokens": 600, "in_flight": 2**i, "decode_tok_s": rate, "longest_pause_s": pause}
        for i, (rate, pause) in enumerate(zip(rates, pauses, strict=True))
    ]  # fmt: skip


def test_requests_that_pause_beside_others_and_not_alone(tmp_path):
    facts = {"prefill_piece_tokens": 32768}
    found = PrefillStealsDecode().observe(seen(facts=facts, requests=beside(), tmp_path=tmp_path))
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "65 s with 4 in flight" in found.statement
    assert "prefill rate" in found.missing[0]
    known = PrefillStealsDecode().observe(
        seen(facts=facts | {"prefill_tok_s": 1000}, requests=beside(), tmp_path=tmp_path)
    )
    assert known is not None
    assert "32768/1000 = 32.8 s a piece" in known.relation
    for rates, pauses in (
        ((40.0, 39.0, 38.0), (0.1, 28.0, 65.0)),
        ((40.0, 27.0, 18.0), (0.1, 0.3, 0.4)),
        ((40.0, 27.0, 18.0), (60.0, 60.0, 65.0)),
    ):
        assert (
            PrefillStealsDecode().observe(seen(facts=facts, requests=beside(rates, pauses), tmp_path=tmp_path)) is None
        )
    assert PrefillStealsDecode().observe(seen(requests=beside(), tmp_path=tmp_path)) is None


# -- SCHED_KV_PREEMPTION


def preempted(second, total):
    return (
        f"WARNING 05-11 17:00:{second:02d} scheduler.py:1325] Sequence group {total} is preempted by PreemptionMode.RECOMPUTE "
        f"mode because there is not enough KV cache space. total_num_cumulative_preemption={total}"
    )


def test_lines_of_preemption_are_a_suspicion_and_a_counter_is_more():
    one = KvPreemption().observe(seen(lines(v0(0, kv=90), preempted(3, 51), v0(5, kv=99))))
    assert one is not None
    assert (one.level, one.missing[0][:22]) == (Level.SUSPECTED, "the preemption counter")
    two = KvPreemption().observe(seen(lines(v0(0, kv=90), preempted(3, 51), preempted(9, 84), v0(15, kv=99))))
    assert two is not None
    assert two.level is Level.CONSISTENT
    assert any("33 more than in the first line" in item.text for item in two.evidence)


def test_sequences_hide_behind_requests():
    log = lines(
        *(v0(5 * i, made=7220.5 - 60 * i, running=2, pending=98, kv=73.8 + 12 * i) for i in range(3)), preempted(16, 51)
    )
    found = KvPreemption().observe(seen(log))
    assert found is not None
    assert "many sequences" in found.statement
    assert "3,610 tok/s" in found.statement
    assert "full 11 s after" in " ".join(item.text for item in found.evidence)
    few = KvPreemption().observe(seen(lines(v0(0, made=60, running=2, kv=99), preempted(3, 51))))
    assert few is not None
    assert "sequences" not in few.statement


@pytest.mark.parametrize("words", ["KV cache pool is full. Retract requests.", "Decode out of memory happened."])
@pytest.mark.parametrize("graph", [True, False])
def test_a_retraction_after_which_the_rate_does_not_come_back(words, graph):
    event = f"[2026-05-11 17:00:50 TP0] {words} #retracted_reqs: 1, #new_token_ratio: 0.32 -> 1.00"
    log = lines(
        *(decode(10 * i, made=430.0, running=4, waiting=3, usage=0.99) for i in range(5)),
        event,
        *(decode(60 + 10 * i, made=30.0 - i, running=3, waiting=3, usage=0.75, graph=graph) for i in range(4)),
    )
    found = KvPreemption().observe(seen(log))
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "430 to 27-30 tok/s" in found.statement
    assert ("CUDA graph" in found.statement) is not graph


def test_a_retraction_that_is_over_is_no_state():
    event = "[2026-05-11 17:00:50 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.3 -> 0.5"
    log = lines(
        *(decode(10 * i, made=430.0, running=4, usage=0.99) for i in range(5)),
        event,
        *(decode(60 + 10 * i, made=400.0, running=4, usage=0.9) for i in range(4)),
    )
    found = KvPreemption().observe(seen(log))
    assert found is not None
    assert "did not come back" not in found.statement


def test_preemptions_in_the_load_line_of_v1():
    log = lines(*(v1(10 * i, made=300, running=20, kv=99.0, extra=", Preemptions: 4") for i in range(3)))
    found = KvPreemption().observe(seen(log))
    assert found is not None
    assert any("count 12 preemptions" in item.text for item in found.evidence)


def test_a_full_cache_with_a_queue_is_suspected_and_one_without_is_not():
    full = lines(*(v1(10 * i, made=900, running=72, waiting=40, kv=99.2) for i in range(4)))
    found = KvPreemption().observe(seen(full))
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert any("max_num_seqs" in item for item in found.missing)
    assert KvPreemption().observe(seen(full.replace("Waiting: 40", "Waiting: 0"))) is None
    assert KvPreemption().observe(seen(full.replace("99.2%", "88.0%"))) is None


# -- SCHED_QUEUE_SATURATION


def queued(values, *, running=64, made=1200.0, kv=50.0):
    return lines(*(v1(10 * i, made=made, running=running, waiting=value, kv=kv) for i, value in enumerate(values)))


def test_a_queue_that_grows():
    found = QueueSaturation().observe(seen(queued([0, 10, 30, 60, 90, 130])))
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "the queue grew from 10 to 130" in found.statement
    assert "requests one by one" in found.missing[0]


def test_a_limit_with_room_in_the_cache_is_a_thing_to_tune():
    found = QueueSaturation().observe(seen(queued([50, 55, 52, 60, 58, 61]), facts={"max_num_seqs": 64}))
    assert found is not None
    assert (str(found.action), "Raise max_num_seqs (now 64)" in found.advice) == ("tune", True)
    shed = QueueSaturation().observe(seen(queued([50, 55, 52, 60, 58, 61])))
    assert shed is not None
    assert str(shed.action) == "shed"


@pytest.mark.parametrize(
    "log",
    [
        queued([0, 0, 1, 0, 2, 0]),
        queued([10, 30, 60, 90, 130], kv=99.0),
        queued([0, 10, 30, 60, 90, 130], made=0.0),
        queued([0, 40, 0, 0, 0, 0, 0, 0]),
        lines(preempted(3, 51), queued([0, 10, 30, 60, 90, 130])),
    ],
)
def test_what_is_no_saturation(log):
    assert QueueSaturation().observe(seen(log)) is None


def finished(queue, second, grammar="None", tpot=23.8):
    return (
        f"2026-05-06T08:40:{second:02d}.123456Z  INFO generate_stream{{parameters=GenerateParameters {{ grammar: {grammar} }} "
        f'total_time="{queue + 2:.2f}s" validation_time="4.1ms" queue_time="{queue:.2f}s" inference_time="2s" '
        f'time_per_token="{tpot}ms" seed="None"}}: text_generation_router::server: Success'
    )


def test_requests_that_wait_in_an_engine_that_tells_each():
    found = QueueSaturation().observe(seen(lines(*(finished(3 + i % 3, i) for i in range(30)))))
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "71% of the slowest" in found.statement
    assert QueueSaturation().observe(seen(lines(*(finished(0.05, i) for i in range(30))))) is None
    assert QueueSaturation().observe(seen(lines(*(finished(3, i) for i in range(4))))) is None


def test_requests_with_a_grammar_wait_and_others_do_not():
    mixed = lines(
        *(finished(38.5 if i % 3 == 0 else 0.1, i, "Some(Json(..))" if i % 3 == 0 else "None") for i in range(30))
    )
    found = StructuredOutput().observe(seen(mixed))
    assert found is not None
    assert found.level is Level.CONSISTENT
    assert "38,500 ms" in found.statement
    assert QueueSaturation().observe(seen(mixed)) is None
    untold = StructuredOutput().observe(seen(mixed.replace("time_per_token", "other")))
    assert untold is not None
    assert (untold.level, untold.missing) == (Level.SUSPECTED, ["the time per token of both kinds"])
    both = lines(*(finished(3, i, "Some(Json(..))" if i % 3 == 0 else "None") for i in range(30)))
    assert StructuredOutput().observe(seen(both)) is None


# -- CLIENT_TIMEOUT_BUDGET


def test_clients_that_leave_by_a_timer_of_their_own():
    found = ClientTimeoutBudget().observe(seen(access(*["30.001"] * 4, status=499)))
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "30.001 s old" in found.statement
    assert all(one.source.rpartition(":")[2].isdigit() for one in found.evidence), "each number has its line"
    assert "the client's timeout" in found.missing[0]
    assert ClientTimeoutBudget().observe(seen(access("3.1", "12.2", "30.0", "45.7", status=499))) is None
    assert ClientTimeoutBudget().observe(seen(access(*["30.001"] * 4, status=504))) is None


# -- COMPUTE_JIT

MARCH = {"month": 3, "day": 9, "hour": 10}


def requests(slow_first=18900, wall="03-09 10:00:{:02d}"):
    rows = [("q1", 8000, 8140, 11020), ("q2", 15300, slow_first, 22010), ("q3", 26000, 26150, 29400)]
    return [
        {"id": name, "t_send_ms": send, "t_first_ms": first, "t_last_ms": last, "status": "ok"}
        | ({"wall": wall.format(send // 1000)} if wall else {})
        for name, send, first, last in rows
    ]


JIT_LOG = lines(
    v1(10, made=940, running=12, **MARCH),
    jit(16, **MARCH),
    jit(17, "_prepare", **MARCH),
    v1(20, made=101, running=13, **MARCH),
    v1(30, made=958, running=12, **MARCH),
)


def test_a_line_of_the_compiler_inside_a_slow_request(tmp_path):
    found = Jit().observe(seen(JIT_LOG, requests=requests(), tmp_path=tmp_path))
    assert found is not None
    # The engine's own throughput falls in the same interval: the clocks are one.
    assert found.level is Level.PROVEN
    assert "3,455 ms of one request" in found.statement
    flat = JIT_LOG.replace("throughput: 101.0", "throughput: 930.0")
    assumed = Jit().observe(seen(flat, requests=requests(), tmp_path=tmp_path))
    assert assumed is not None
    assert assumed.level is Level.CONSISTENT
    assert "one clock" in assumed.missing[0]


def test_a_wall_clock_with_a_zone_and_a_collectors_stamps_prove_it(tmp_path):
    # The engine's clock is seven hours behind UTC; both the log and the requests say so.
    stamped = lines(*(f"2026-03-09T17:{line.split(' 10:')[1][:5]}.050Z {line}" for line in JIT_LOG.splitlines()))
    rows = requests(wall="2026-03-09T17:00:{:02d}Z")
    found = Jit().observe(seen(stamped, requests=rows, tmp_path=tmp_path))
    assert found is not None
    assert found.level is Level.PROVEN


def test_without_requests_the_dip_of_the_log_itself_speaks():
    found = Jit().observe(seen(JIT_LOG))
    assert found is not None
    assert found.level is Level.CONSISTENT
    assert "101 tok/s against" in found.relation


def test_a_line_alone_is_a_suspicion(tmp_path):
    flat = JIT_LOG.replace("throughput: 101.0", "throughput: 930.0")
    found = Jit().observe(seen(flat))
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "when requests were slow" in found.missing[0]
    unclocked = Jit().observe(seen(flat, requests=requests(wall=""), tmp_path=tmp_path))
    assert unclocked is not None
    assert unclocked.level is Level.SUSPECTED
    fast = Jit().observe(seen(flat, requests=requests(slow_first=15440), tmp_path=tmp_path))
    assert fast is not None
    assert fast.level is Level.SUSPECTED


def test_a_shape_that_is_compiled_again_is_no_first_use():
    gemm = "[2026-05-11 17:{} TP0] DeepGEMM JIT code generation <gemm_fp8>: M=4096, N=512, K=2048"
    text = lines(gemm.format("00:10"), gemm.format("08:10"))
    found = Jit().observe(seen(text))
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "compiled again 480 s later" in found.disproof_checked[0]


def test_a_log_without_such_a_line_says_nothing_of_it():
    assert Jit().observe(seen(lines(*NORMAL, *stalled(3)))) is None


# -- METRIC_IDLE_ARTIFACT


def idle(first=(1.06, 3.17), steady=84.0, old=True):
    out = []
    for number, low in enumerate(first):
        at = 20 * number
        out += [
            prefill(at),
            decode(at + 1, made=low, old=old),
            *(decode(at + 2 + i, made=steady, old=old) for i in range(2)),
        ]
    return out


@pytest.mark.parametrize("old", [True, False])
def test_the_first_line_after_idle_is_no_slow_decoding(old):
    found = IdleArtifact().observe(seen(lines(*idle(old=old))))
    assert found is not None
    assert found.level is Level.CONSISTENT
    assert "1.06, 3.17" in found.statement
    assert "84 tok/s" in found.statement


@pytest.mark.parametrize(
    "log",
    [
        lines(prefill(0), *(decode(1 + i, made=2.0) for i in range(4))),  # it stays low
        lines(*(decode(1 + i, made=84.0 if i else 2.0) for i in range(4))),  # no idle time is seen
        lines(prefill(0, running=3), *(decode(1 + i, made=84.0 if i else 2.0, running=4) for i in range(4))),
        lines(*idle(first=(80.0, 79.0))),
    ],
)
def test_what_is_no_artefact_of_idle_time(log):
    assert IdleArtifact().observe(seen(log)) is None


def test_where_something_else_is_wrong_it_does_not_end_the_diagnosis():
    event = "[2026-05-11 17:00:50 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.3 -> 0.5"
    found = IdleArtifact().observe(seen(lines(*idle(), event)))
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "what else is wrong" in found.missing[0]


# -- GW_UPSTREAM_TIMEOUT


def access(*failed, good=5, status=504, size="0"):
    done = [ingress(i, took=f"{20 + i}.337", upstream=f"{20 + i}.336") for i in range(good)]
    return lines(
        *done,
        *(ingress(60 + i, status=status, took=f"{took}", upstream=took, size=size) for i, took in enumerate(failed)),
    )


@pytest.mark.parametrize("timer", ["60", "15", "300"])
def test_a_timer_of_the_proxy(timer):
    found = UpstreamTimeout().observe(seen(access(f"{timer}.000", f"{timer}.001", f"{timer}.004")))
    assert found is not None
    assert found.level is Level.CONSISTENT
    assert f"for {timer} s" in found.statement
    assert "0 bytes had come from the upstream" in [item.text for item in found.evidence]


def test_envoy_names_its_timer():
    text = lines(
        *(
            json.dumps(
                {
                    "start_time": f"2026-02-11T09:02:{i:02d}Z",
                    "method": "POST",
                    "path": "/v1/completions",
                    "response_code": 504,
                    "response_flags": "UT",
                    "duration": 47310 + i,
                    "bytes_sent": 24,
                }
            )
            for i in range(3)
        )
    )
    found = UpstreamTimeout().observe(seen(text))
    assert found is not None
    assert found.level is Level.CONSISTENT
    assert any("UT (upstream request timeout)" in item.text for item in found.evidence)


def test_one_request_may_agree_by_chance_unless_the_configuration_says_so():
    alone = UpstreamTimeout().observe(seen(access("60.000")))
    assert alone is not None
    assert alone.level is Level.SUSPECTED
    assert "proxy_read_timeout" in alone.missing[0]
    told = UpstreamTimeout().observe(seen(access("60.000"), facts={"proxy_read_timeout_s": 60}))
    assert told is not None
    assert told.level is Level.CONSISTENT


@pytest.mark.parametrize(
    "log",
    [
        access("12.310", "31.200", "47.900"),  # ages spread
        access("60.000", "60.001", size="1841"),  # bytes had come
        access("60.000", "60.001", status=499),  # the client's own timer
        access("0.001", "0.001", "0.002"),  # refused at once
        access(),
    ],
)
def test_what_is_no_timer_of_the_proxy(log):
    assert UpstreamTimeout().observe(seen(log)) is None


NGINX_ERROR = (
    "2026/02/11 09:02:{:02d} [error] 7#7: *123 upstream timed out (110: Connection timed out) while reading response header "
    'from upstream, client: 10.0.4.7, server: _, request: "POST /v1/completions HTTP/1.1", upstream: '
    '"http://10.0.9.21:8000/v1/completions", host: "llm"'
)


def test_the_error_log_of_a_proxy_names_the_timer_but_not_its_length():
    text = lines(*(NGINX_ERROR.format(i) for i in range(3)))
    found = UpstreamTimeout().observe(seen(text))
    assert found is not None
    assert (found.level, found.n) == (Level.SUSPECTED, 3)
    assert "while reading response header from upstream" in found.statement
    both = UpstreamTimeout().observe(seen(text, access("60.000", "60.001", "60.004")))
    assert both is not None
    assert both.level is Level.CONSISTENT


# -- RETRY_STORM


def retried(tries, *, good=10, late=None):
    out = [ingress(i) for i in range(good)]
    for number, count in enumerate(tries):
        out.append(
            ingress(60 + number, status=502, took="9.0", upstream=", ".join(["3.000"] * count), size=", ".join(["0"] * count),
                    last=", ".join(["502"] * count), addresses=", ".join(["10.0.0.1:80"] * count))
        )  # fmt: skip
    return lines(*out)


def test_attempts_that_grow_with_the_errors():
    found = RetryStorm().observe(seen(retried([2, 3, 3, 3, 3, 3, 3, 3])))
    assert found is not None
    assert found.level is Level.CONSISTENT
    assert "33 for 18" in found.statement
    assert "33 / 18 = 1.83" in found.relation


def test_attempts_that_do_not_rise_are_suspected():
    even = lines(*(retried([2], good=1) for _ in range(10)))
    found = RetryStorm().observe(seen(even))
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "rise with the errors" in found.missing[0]


def test_a_retry_now_and_then_is_no_storm():
    assert RetryStorm().observe(seen(retried([2, 2], good=40))) is None
    assert RetryStorm().observe(seen(lines(*(ingress(i) for i in range(40))))) is None


# -- CANCEL_UNATTRIBUTED


def test_answers_that_began_and_never_ended():
    found = CancelUnattributed().observe(seen(lines(*[uvicorn()] * 13), facts={"summary_lines": 4}))
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert found.relation == "13 - 4 = 9 answers without summary"
    assert "hung up" in found.statement


def test_abort_lines_attribute_them():
    aborts = lines(
        *(
            f"(APIServer pid=1) INFO 11-29 11:25:{i:02d} [async_llm.py:922] Aborted request(s) chatcmpl-{i}-b5eb8fee."
            for i in range(9)
        )
    )
    assert CancelUnattributed().observe(seen(lines(*[uvicorn()] * 13, aborts), facts={"summary_lines": 4})) is None


@pytest.mark.parametrize(
    ("log", "facts"),
    [
        (lines(*[uvicorn()] * 13), {"summary_lines": 13}),
        (lines(*[uvicorn()] * 13), {}),
        (lines(*[uvicorn(path="/health")] * 13), {"summary_lines": 4}),
        (lines(*[ingress(3)] * 13), {"summary_lines": 4}),  # a proxy writes its line at the end
    ],
)
def test_what_is_no_silent_hang_up(log, facts):
    assert CancelUnattributed().observe(seen(log, facts=facts)) is None


def test_requests_that_leave_the_engine_while_clients_wait():
    log = lines(*(v1(10 * i, made=30, running=2, kv=12.0) for i in range(4)), v1(40, made=3.0, running=0, kv=0.0))
    found = CancelUnattributed().observe(seen(log, facts={"client_connections_open_at_end": 2}))
    assert found is not None
    assert "running went from 2 to 0" in found.statement
    assert "KV usage from 12.0% to 0.0%" in found.statement
    assert CancelUnattributed().observe(seen(log)) is None
    done = "(APIServer pid=1) INFO 05-11 17:00:38 [async_llm.py:922] Aborted request(s) chatcmpl-1-b5eb8fee."
    assert CancelUnattributed().observe(seen(log, done, facts={"client_connections_open_at_end": 2})) is None


def test_a_proxys_words_do_not_tell_who_closed():
    log = lines(*(v1(10 * i, made=30, running=1, kv=12.0) for i in range(4)), v1(40, made=3.0, running=0, kv=0.0))
    proxy = "2026-05-11 17:00:39 [WARN] <qwen> recovered from upstream disconnection during streaming"
    found = CancelUnattributed().observe(seen(log, proxy))
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "does not tell which side closed" in found.statement
