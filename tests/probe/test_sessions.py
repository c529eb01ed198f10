"""Sessions: turns in order, a history of what the server really said, and times that count from the answer before."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

from tailrace.model.outcome import OutcomeKind
from tailrace.model.thresholds import MS
from tailrace.probe.spec import BenchSpec
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.conversations import read_conversations
from tailrace.workload.leave import Leave
from tailrace.workload.length import Fixed, Uniform
from tailrace.workload.mix import TrafficClass
from tailrace.workload.plan import Workload
from tailrace.workload.session import Sessions
from tailrace.workload.traits import Traits
from tests.probe.raw_server import END, HEAD, Call, RawServer, chunk, error, last, serving, token, whole
from tests.probe.running import run, spec_for

THREE = Fixed(3)


def sessions(url: str, *, turns=THREE, think_ms: int = 0, arrivals: Arrivals | None = None, **more) -> BenchSpec:
    leaves = more.pop("leaves", [])
    traits = Traits(sessions=Sessions(turns=turns, think=Fixed(think_ms), follow_up=Fixed(5)), leaves=leaves)
    mix = [TrafficClass(name="talk", prompt=Fixed(20), output=Fixed(3), traits=traits)]
    return spec_for(url, workload=Workload(arrivals=arrivals or Arrivals(concurrency=2), mix=mix), **more)


async def said(call: Call) -> None:
    """An answer that tells which call it was the answer to."""
    await call.send(HEAD, chunk(token(f"answer-{call.number}")), chunk(token(" ends")), chunk(last(2)), END)


def by_session(server: RawServer) -> dict[str, list[Call]]:
    out = defaultdict(list)
    for call in server.calls:
        out[call.headers["x-session-id"]].append(call)
    return out


def test_the_history_grows_with_what_the_server_said(tmp_path: Path):
    with serving(RawServer(said)) as server:
        result = run(sessions(server.url, requests=12), tmp_path)
    found = by_session(server)
    assert [len(calls) for calls in found.values()] == [3] * 4
    for calls in found.values():
        for i, call in enumerate(calls):
            messages = call.body["messages"]
            assert [one["role"] for one in messages] == ["user", "assistant"] * i + ["user"]
            if i:
                before = calls[i - 1]
                assert messages[:-2] == before.body["messages"]
                assert messages[-2]["content"] == f"answer-{before.number} ends"
    users = [call.body["messages"][-1]["content"] for call in server.calls]
    assert len(set(users)) == 12
    # Four characters a token: the first message has 20 tokens, a later one its own 5, whatever the history has.
    assert {len(calls[0].body["messages"][-1]["content"]) for calls in found.values()} == {80}
    assert {len(call.body["messages"][-1]["content"]) for calls in found.values() for call in calls[1:]} == {20}
    records = sorted(result.records, key=lambda r: (r.session_id, r.turn))
    assert [r.turn for r in records] == [0, 1, 2] * 4
    assert len({r.session_id for r in records}) == 4
    assert {r.session_id for r in records} == set(found)
    work = result.summary.work
    assert work is not None
    assert work.sessions is not None
    assert (work.sessions.n, work.sessions.turns, work.sessions.turns_not_sent) == (4, 12, 0)


def test_no_text_of_an_answer_is_on_disk(tmp_path: Path):
    with serving(RawServer(said)) as server:
        run(sessions(server.url, requests=6), tmp_path)
    assert b"answer-" not in (tmp_path / "probe.run").read_bytes()


def test_a_worker_is_a_session_and_thinks(tmp_path: Path):
    with serving(RawServer(said)) as server:
        result = run(sessions(server.url, think_ms=60, requests=6, arrivals=Arrivals(concurrency=1)), tmp_path)
    order = [call.headers["x-session-id"] for call in server.calls]
    assert order == sorted(order), "one session after the other"
    for one, two in zip(result.records, result.records[1:], strict=False):
        if one.session_id == two.session_id:
            assert one.run_offset_ns is not None
            assert two.run_offset_ns is not None
            # What is above is how late the first was sent: a moment, on a busy machine a long one.
            assert 0 <= two.run_offset_ns - one.run_offset_ns - 60 * MS - one.e2e_ns < 200 * MS


def test_sessions_arrive_by_the_schedule_and_turns_by_their_answers(tmp_path: Path):
    arrivals = Arrivals(kind=ArrivalKind.CONSTANT, rate=20)
    with serving(RawServer(said)) as server:
        result = run(sessions(server.url, think_ms=120, arrivals=arrivals, requests=12), tmp_path)
    firsts = sorted(r.run_offset_ns for r in result.records if r.turn == 0)
    assert firsts == [0, 50 * MS, 100 * MS, 150 * MS], "no answer and no thinking delays an arrival"
    talks = defaultdict(dict)
    for record in result.records:
        talks[record.session_id][record.turn] = record
    for turns in talks.values():
        for i in (1, 2):
            before, mine = turns[i - 1], turns[i]
            ended = before.run_offset_ns + before.intended_to_sent_ns + before.e2e_ns
            assert mine.run_offset_ns == pytest.approx(ended + 120 * MS, abs=1 * MS), "end of the answer plus thinking"
            assert 0 <= mine.intended_to_sent_ns < 100 * MS
    assert result.summary.from_schedule["ttft_ms"].n == 12


def test_a_failed_turn_ends_its_session(tmp_path: Path):
    async def script(call: Call) -> None:
        await (call.send(error(500, "broken")) if len(call.body["messages"]) == 3 else said(call))

    with serving(RawServer(script)) as server:
        result = run(sessions(server.url, turns=Fixed(4), requests=8), tmp_path)
    assert len(server.calls) == 4, "two sessions, two turns each"
    assert result.counters["turns_not_sent"] == 4
    assert result.summary.errors == {"engine_error": 2}


def test_the_end_of_the_time_ends_sessions_too(tmp_path: Path):
    with serving(RawServer(said)) as server:
        spec = sessions(server.url, think_ms=10_000, requests=None, duration_ns=300 * MS)
        result = run(spec, tmp_path)
    assert {r.turn for r in result.records} == {0}
    assert result.counters["turns_not_sent"] == 2 * len(result.records)


def test_a_limit_counts_turns_and_cuts_the_last_session(tmp_path: Path):
    with serving(RawServer(said)) as server:
        result = run(sessions(server.url, requests=7), tmp_path)
    assert sorted(len(calls) for calls in by_session(server).values()) == [1, 3, 3]
    assert result.summary.n == 7


def test_whole_answers_make_history_as_well(tmp_path: Path):
    async def body(call: Call) -> None:
        message = {"role": "assistant", "content": f"whole-{call.number}"}
        usage = {"prompt_tokens": 5, "completion_tokens": 3}
        await call.send(
            whole(
                200, {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
            )
        )

    with serving(RawServer(body, look=body)) as server:
        run(sessions(server.url, requests=3, stream=False), tmp_path)
    assert server.calls[2].body["messages"][3]["content"] == f"whole-{server.calls[1].number}"


def test_a_user_who_left_goes_on_with_what_there_was(tmp_path: Path):
    async def slow(call: Call) -> None:
        await call.answer(tokens=50, gap_s=0.005)

    with serving(RawServer(slow)) as server:
        spec = sessions(server.url, requests=3, leaves=[Leave(tokens=4)], arrivals=Arrivals(concurrency=1))
        result = run(spec, tmp_path)
    # The last turn leaves, too; each time the history has what came before.
    assert [r.outcome for r in result.records] == [OutcomeKind.CANCELLED] * 3
    assert 4 <= len(server.calls[1].body["messages"][1]["content"].split()) < 50


LINES = [
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": 'Say "hi"'},
                  {"role": "assistant", "content": "x" * 40}, {"role": "user", "content": "Again"}]},
    {"conversations": [{"from": "human", "value": "One"}, {"from": "gpt", "value": "y" * 20}]},
]  # fmt: skip


def test_recorded_conversations_are_asked_again(tmp_path: Path):
    recorded = read_conversations([json.dumps(one) for one in LINES])
    workload = Workload(arrivals=Arrivals(concurrency=1), conversations=recorded)
    with serving(RawServer(said)) as server:
        result = run(spec_for(server.url, workload=workload, requests=6), tmp_path)
    first, second, third = (call.body["messages"] for call in server.calls[:3])
    assert first[0] == {"role": "system", "content": "Be brief."}
    assert first[1]["content"].endswith('\nSay "hi"')
    assert second[-1]["content"] == "Again"
    assert second[:2] == first
    assert third[0]["content"].endswith("\nOne")
    again = server.calls[3].body["messages"]
    assert again[1]["content"] != first[1]["content"], "the same text again would be in a prefix cache"
    assert [call.body["max_tokens"] for call in server.calls[:3]] == [10, 128, 5]
    assert [r.turn for r in result.records] == [0, 1, 0, 0, 1, 0]
    assert {r.lane for r in result.records} == {"conversation"}


def test_other_apis_carry_the_history_their_way(tmp_path: Path):
    async def look(call: Call) -> None:
        await call.send(whole(200, {"type": "message", "id": "m", "role": "assistant", "stop_reason": "end_turn",
                                    "content": [{"type": "text", "text": "claude said"}],
                                    "usage": {"input_tokens": 4, "output_tokens": 2}}))  # fmt: skip

    with serving(RawServer(look, look=look)) as server:
        run(sessions(server.url, endpoint="messages", stream=False, requests=2, turns=Fixed(2)), tmp_path)
    assert [one["role"] for one in server.calls[1].body["messages"]] == ["user", "assistant", "user"]
    assert server.calls[1].body["messages"][1]["content"] == "claude said"


def test_parts_of_a_run_share_its_sessions(tmp_path: Path):
    seen = []
    for part in ((0, 2), (1, 2)):
        with serving(RawServer(said)) as server:
            run(sessions(server.url, turns=Uniform(1, 4), requests=20, part=part, nonce="n"), tmp_path)
            seen.append({call.headers["x-request-id"] for call in server.calls})
    with serving(RawServer(said)) as server:
        run(sessions(server.url, turns=Uniform(1, 4), requests=20, nonce="n"), tmp_path)
        whole_run = {call.headers["x-request-id"] for call in server.calls}
    assert not seen[0] & seen[1]
    assert seen[0] | seen[1] == whole_run


def test_a_spec_with_sessions_survives_its_way_to_another_process():
    spec = sessions("x", leaves=[Leave(share=0.5, tokens=3)])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=BenchSpec) == spec
