"""The same quantities in other shapes: repeated runs, sweeps of any step, parts of a whole, arms inside of tables."""

from __future__ import annotations

import json

import pytest

from tests.diagnose.evidence_texts import asked, facts


@pytest.fixture
def ask(tmp_path):
    """name -> text of several files -> the findings by code, the surest first."""

    return lambda **files: {finding.code: finding for finding in asked(tmp_path, **files).findings}


def first(found: dict) -> str:
    return next(iter(found), "")


def said(finding) -> str:
    return " ".join([finding.statement, finding.relation, *(item.text for item in finding.evidence)])


# -- parts of a whole

HOPS = (
    "| hop | p50 ms |\n|---|---|\n| client: first token | {} |\n| ingress filter | 35 |\n| auth call | 60 |\n"
    "| engine first token | 310 |\n"
)


@pytest.mark.parametrize(("whole", "gap"), [(1450, True), (420, False)])
def test_a_table_with_a_row_a_hop_tells_how_much_is_stamped(ask, whole, gap):
    found = ask(t_md=HOPS.format(whole))
    assert ("TRACE_GAP" in found) is gap
    if gap:
        assert "27.9%" in said(found["TRACE_GAP"])


def test_a_table_of_two_hops_of_which_one_is_no_client_is_no_trace(ask):
    assert "TRACE_GAP" not in ask(t_md=HOPS.format(1450).replace("client: first token", "retrieval"))


def agent(turn: str, end: float, llm: float, tts: float) -> str:
    return "\n".join(
        json.dumps(one)
        for one in (
            {"type": "eou_metrics", "speech_id": turn, "end_of_utterance_delay": end, "transcription_delay": 0.2},
            {"type": "llm_metrics", "speech_id": turn, "ttft": llm},
            {"type": "tts_metrics", "speech_id": turn, "ttfb": tts},
        )
    )


TURNS = "\n".join([agent("u1", 0.5, 0.4, 0.2), agent("u2", 0.61, 0.38, 0.22), agent("u3", 0.55, 0.45, 0.18)])


@pytest.mark.parametrize(("heard", "gap"), [((3.1, 3.3, 3.0), True), ((1.15, 1.24, 1.21), False)])
def test_stages_of_an_agent_against_what_a_caller_hears(ask, heard, gap):
    table = "turn,user_stopped_s,bot_started_speaking_s\n" + "".join(
        f"{n},{10 * n},{10 * n + length}\n" for n, length in enumerate(heard, start=1)
    )
    assert ("TRACE_GAP" in ask(m_json=TURNS, call_csv=table)) is gap


def test_a_stated_silence_of_all_turns_is_a_whole_too(ask):
    assert "TRACE_GAP" in ask(m_json=TURNS, f_json=facts(voice_to_voice_ms=2900))
    assert "TRACE_GAP" not in ask(m_json=TURNS, f_json=facts(voice_to_voice_ms=1210))


# -- sweeps

SHORT = "clients,req/s,latency p50 (ms)\n1,40,25\n4,120,33\n8,190,42\n16,{rate},{late}\n"


@pytest.mark.parametrize(("rate", "late", "full"), [(192, 83, True), (360, 44, False), (192, 55, False)])
def test_littles_law_closes_for_requests_of_milliseconds(ask, rate, late, full):
    found = ask(t_csv=SHORT.format(rate=rate, late=late))
    assert ("SCHED_QUEUE_SATURATION" in found) is full


TURN_BY_TURN = "| in flight | req/s | latency mean (ms) |\n|---|---|---|\n| 1 | 2.5 | 400 |\n| 4 | {} | {} |\n"


@pytest.mark.parametrize(("rate", "took", "serial"), [(2.55, 1570, True), (8.9, 450, False), (2.55, 700, False)])
def test_more_at_once_that_get_no_more_are_served_in_turn(ask, rate, took, serial):
    found = ask(t_md=TURN_BY_TURN.format(rate, took))
    assert ("SCHED_INSTANCE_LIMIT" in found) is serial
    if serial:
        assert found["SCHED_INSTANCE_LIMIT"].level == "suspected"


STEP = "threads,template render (ms),GPU util (%),host CPU (%)\n1,90,{g},8\n2,182,{g},8\n4,361,{g},9\n8,725,{g},9\n"
LOAD = "threads,adapter swap (ms),GPU util (%),host CPU (%)\n1,90,{g},8\n2,182,{g},8\n4,361,{g},9\n8,725,{g},9\n"


@pytest.mark.parametrize(("text", "gpu", "locked"), [(STEP, 12, True), (LOAD, 12, True), (LOAD, 97, False)])
def test_a_step_of_any_name_that_grows_with_the_threads_is_served_in_turn(ask, text, gpu, locked):
    assert ("LOCK_CONTENTION" in ask(t_csv=text.format(g=gpu))) is locked


def test_a_step_of_no_known_kind_needs_an_idle_device(ask):
    table = "threads,adapter swap (ms)\n1,90\n2,182\n4,361\n8,725\n"
    assert "LOCK_CONTENTION" not in ask(t_csv=table)


CHUNKS = "n_batch,longest gap (ms),stalls,TTFT long (s)\n512,{},40,21\n1024,{},20,20.4\n4096,{},5,20.1\n"


@pytest.mark.parametrize(
    ("gaps", "steals"), [((500, 1010, 4050), True), ((700, 720, 740), False), ((20, 41, 165), False)]
)
def test_a_gap_in_step_with_the_budget_is_one_chunk(ask, gaps, steals):
    found = ask(t_csv=CHUNKS.format(*gaps))
    assert ("SCHED_PREFILL_STEALS_DECODE" in found) is steals
    if steals:
        assert "1014 tok/s" in said(found["SCHED_PREFILL_STEALS_DECODE"])


# -- repeated runs

RUNS = (
    "| build | rep | n | failed | TTFT p50 (ms) | TTFT p99 (ms) |\n|---|---|---|---|---|---|\n"
    "| old build | 1 | 3000 | 3 | 200 | {} |\n| old build | 2 | 3000 | 2 | 203 | {} |\n"
    "| new build | 1 | 3000 | 3 | 198 | {} |\n| new build | 2 | 3000 | 3 | 201 | {} |\n"
)


@pytest.mark.parametrize(
    ("tails", "code"),
    [
        ((900, 930, 610, 640), "AB_TAIL_IMPROVED"),
        ((610, 640, 900, 930), "AB_TAIL_REGRESSED"),
        ((900, 600, 850, 520), ""),
    ],
)
def test_runs_of_one_arm_that_differ_as_much_as_the_arms_are_no_change(ask, tails, code):
    found = ask(t_md=RUNS.format(*tails))
    assert {one for one in found if one.startswith("AB_TAIL")} == ({code} if code else set())


def test_runs_beside_notes_are_repetitions(ask):
    rows = "".join(
        f"| {n} | {ttft} | 20.1 | {note} |\n"
        for n, ttft, note in ((1, 900, "cold"), (2, 880, "cold"), (3, 3100, "after lunch"), (4, 910, "cold"))
    )
    table = "| run | TTFT mean (ms) | ITL mean (ms) | note |\n|---|---|---|---|\n" + rows
    assert "BENCH_UNSTABLE" in ask(t_md=table)
    assert "BENCH_UNSTABLE" not in ask(t_md=table.replace("3100", "930"))


ROUNDS = (
    "| trial | baseline (s) | candidate (s) |\n|---|---|---|\n| 1 | 12.1 | {} |\n| 2 | 15.0 | {} |\n| 3 | 14.6 | {} |\n"
)


@pytest.mark.parametrize(("after", "unstable"), [((12.6, 14.2, 14.1), True), ((9.0, 11.8, 11.6), False)])
def test_an_unchanged_side_that_drifts_more_than_the_effect_carries_nothing(ask, after, unstable):
    found = ask(t_md=ROUNDS.format(*after))
    assert ("BENCH_UNSTABLE" in found) is unstable
    if unstable:
        assert found["BENCH_UNSTABLE"].level == "suspected"


def run(p99: float) -> str:
    return json.dumps(
        {"num_prompts": 4000, "completed": 4000, "failed": 0, "request_rate": 20.0, "duration": 200.0,
         "median_ttft_ms": 90.0, "p99_ttft_ms": p99, "request_throughput": 20.0}
    )  # fmt: skip


def test_the_statement_of_the_change_tells_the_sides(ask):
    stated = facts(changed="poll interval: 5 ms (as shipped) -> 250 ms")
    runs = {"poll-250ms_json": run(1500.0), "poll-5ms_json": run(400.0)}
    found = ask(f_json=stated, **runs)
    assert first(found) == "AB_TAIL_REGRESSED"
    other = facts(changed="poll interval: 1 ms -> 2 ms")
    assert "AB_TAIL_REGRESSED" not in ask(f_json=other, **runs)


# -- arms and loads inside of a table of requests


def request(n: int, arm: str, sent: float, ttft: float, pace: float, **more: object) -> str:
    tokens = 60
    return json.dumps(
        {"id": f"{arm}-{n}", "arm": arm, "t_send_ms": sent, "t_first_ms": sent + ttft,
         "t_last_ms": sent + ttft + pace * (tokens - 1), "prompt_tokens": 500, "output_tokens": tokens,
         "in_flight": 1, "status": "ok", **more}
    )  # fmt: skip


@pytest.mark.parametrize(("pace", "slower"), [(31.0, True), (25.4, False)])
def test_versions_named_by_the_rows_of_requests_are_compared(ask, pace, slower):
    rows = [request(n, "v1.2.0", 3000 * n, 90 + n, 25.0 + 0.1 * n) for n in range(5)]
    rows += [request(n, "v1.3.0", 3000 * n, 90 + n, pace + 0.1 * n) for n in range(5)]
    assert (first(ask(r_jsonl="\n".join(rows))) in {"COMPUTE_KERNEL_REGRESSION", "DECODE_SLOWDOWN"}) is slower


def test_an_arm_of_two_modes_has_no_usual_value(ask):
    rows = [request(n, "direct", 30000 * n, 900 + n, 15.0) for n in range(8)]
    rows += [request(n, "via", 30000 * n + 9000, 950 if n % 2 else 9500, 15.0 if n % 2 else 1.0) for n in range(8)]
    assert "GW_PROXY_BUFFERING" not in ask(r_jsonl="\n".join(rows))


def burst(n: int, arm: str, sent: float, queue: float) -> str:
    return request(n, arm, sent, queue + 40, 5.0, stage_ms={"queue": queue, "prefill": 40, "decode": 295})


@pytest.mark.parametrize("together", [True, False])
def test_arrivals_of_each_arm_are_judged_by_themselves(ask, together):
    rows = [burst(n, "steady", 200 * n, 1) for n in range(24)]
    for n in range(24):
        at = 1600 * (n // 8) + (n % 8 if together else 200 * (n % 8))
        rows.append(burst(n, "traffic", at, 45.0 * (n % 8) if together else 2.0))
    assert ("MIX_BURSTY_ARRIVALS" in ask(r_jsonl="\n".join(rows))) is together


@pytest.mark.parametrize(("own", "slow"), [(4100, True), (35, False)])
def test_a_gateways_own_time_grows_with_the_load_of_its_rows(ask, own, slow):
    rows = [
        json.dumps(
            {"ts": f"2026-02-03T09:0{m}:{s:02d}Z", "route": "/v1/chat/completions", "status": 200, "offered_rps": rate,
             "duration_ms": 900 + extra + s, "x-litellm-overhead-duration-ms": extra + s}
        )
        for m, rate, extra in ((0, 3, 30), (5, 30, own))
        for s in range(5)
    ]  # fmt: skip
    assert ("GW_SELF_BOTTLENECK" in ask(g_log="\n".join(rows))) is slow
