"""Streams that stop together, in chunks and on stacks: the engine's doing, the text's, or not to be told."""

from __future__ import annotations

import pytest

from tests.diagnose.evidence_texts import asked, facts, found, said, table

HEAD = "req,chunk,t_client_ms"


def chunks(*, streams=6, apart_ms=700.0, stops=(1500.0,), length=1100.0, alone=False) -> str:
    """Streams of a chunk every 20 ms that stand still from each of `stops` (ms) on."""
    rows = []
    for stream in range(streams):
        at = stream * apart_ms
        for chunk in range(260):
            at += 20.0
            for stop in stops:
                if stop < at < stop + length and (not alone or stream == 0):
                    at = stop + length + stream
            rows.append((f"r{stream}", chunk, f"{at:.1f}"))
    return table(HEAD, rows)


def test_stops_on_a_beat_in_chunks_point_to_a_collector(tmp_path):
    beat = tuple(2000.0 + 600.0 * at for at in range(7))
    finding = found(tmp_path, "FE_GC_PAUSE", a_csv=chunks(stops=beat, length=150.0, apart_ms=300.0))
    assert finding.level == "suspected"
    assert "every 0.6 s" in finding.statement
    assert any("running" in item for item in finding.missing)


def test_stops_without_a_beat_or_of_one_stream_are_no_collector(tmp_path):
    uneven = (1600.0, 1900.0, 2900.0, 3150.0, 4200.0, 4450.0, 5300.0)
    assert found(tmp_path, "FE_GC_PAUSE", a_csv=chunks(stops=uneven, length=150.0, apart_ms=300.0)) is None
    beat = tuple(2000.0 + 600.0 * at for at in range(7))
    assert found(tmp_path, "FE_GC_PAUSE", b_csv=chunks(stops=beat, length=150.0, apart_ms=300.0, alone=True)) is None


def test_streams_that_began_together_leave_the_moment_and_the_place_as_one(tmp_path):
    diagnosis = asked(tmp_path, a_csv=chunks(apart_ms=2.0))
    assert diagnosis.findings[0].code == "INSUFFICIENT_EVIDENCE"
    assert any("all 6 streams stand still together" in need for need in diagnosis.needs)


def test_streams_that_began_apart_and_stop_at_one_moment_do_not_stop_for_their_text(tmp_path):
    # The moment lies at another chunk of each; only the first two share a place by chance.
    assert found(tmp_path, "STREAM_GAP_AT_POSITION", a_csv=chunks(apart_ms=15.0, stops=(2500.0,))) is None


STACK = """Process 881: VLLM::EngineCore_DP0
Python v3.12.3 (/usr/bin/python3.12)

Thread 881 (active+gil): "MainThread"
    {0}
    step (vllm/v1/engine/core.py:286)
    run_busy_loop (vllm/v1/engine/core.py:754)
Thread 902 (idle): "Thread-1 (process_input_sockets)"
    poll (zmq/sugar/poll.py:106)
    process_input_sockets (vllm/v1/engine/core.py:830)
"""
COLLECTOR = "_gc_callback (vllm/utils/gc_utils.py:88)"
TOKENIZER = "_batch_encode_plus (transformers/tokenization_utils_fast.py:553)"
STOPPED = {"pyspy_taken_in_stall": True, "all_streams_frozen": True, "stall_s": 1.9}


@pytest.mark.parametrize(("frame", "code"), [(COLLECTOR, "FE_GC_PAUSE"), (TOKENIZER, "FE_EVENTLOOP_BLOCK")])
def test_a_stack_from_inside_the_stop_names_what_stops_it(tmp_path, frame, code):
    finding = found(tmp_path, code, stack_txt=STACK.format(frame), facts_json=facts(**STOPPED))
    assert finding.level == "proven"
    assert "1.9 s" in finding.statement
    assert frame.split(" ")[0] in said(finding)


@pytest.mark.parametrize(("frame", "code"), [(COLLECTOR, "FE_GC_PAUSE"), (TOKENIZER, "FE_EVENTLOOP_BLOCK")])
def test_without_the_moment_of_the_dump_it_is_a_suspicion(tmp_path, frame, code):
    alone = found(tmp_path, code, stack_txt=STACK.format(frame))
    assert alone.level == "suspected"
    assert "taken while it was slow" in " ".join(alone.missing)
    one = found(tmp_path, code, stack_txt=STACK.format(frame), facts_json=facts(pyspy_taken_in_stall=True))
    assert one.level == "suspected"
    assert "all stop together" in " ".join(one.missing) or "all streams stop" in " ".join(one.missing)


@pytest.mark.parametrize(
    "said_", [{"pyspy_taken_in_stall": False}, {"pyspy_taken_in_stall": True, "all_streams_frozen": False}]
)
@pytest.mark.parametrize(("frame", "code"), [(COLLECTOR, "FE_GC_PAUSE"), (TOKENIZER, "FE_EVENTLOOP_BLOCK")])
def test_a_dump_from_elsewhere_or_others_that_go_on_name_nothing(tmp_path, frame, code, said_):
    assert found(tmp_path, code, stack_txt=STACK.format(frame), facts_json=facts(**said_)) is None


def test_a_dump_is_no_scrape(tmp_path):
    # `process_input_sockets (path)` looks like a metric of the process and its value.
    diagnosis = asked(tmp_path, stack_txt=STACK.format(COLLECTOR))
    assert not diagnosis.not_understood


def test_a_quick_stream_without_stamps_of_the_sender_is_no_burst(tmp_path):
    # 20 ms a chunk are a usual pace: nothing holds them, and one stop makes no buffer of it.
    assert found(tmp_path, "GW_PROXY_BUFFERING", a_csv=chunks(stops=())) is None
    assert found(tmp_path, "GW_PROXY_BUFFERING", b_csv=chunks(apart_ms=2.0)) is None


def test_bursts_without_stamps_of_the_sender_are_still_a_suspicion(tmp_path):
    rows = [
        (f"r{stream}", chunk, (chunk // 40 + 1) * 1600.0 + chunk % 40 * 0.05)
        for stream in range(3)
        for chunk in range(200)
    ]
    finding = found(tmp_path, "GW_PROXY_BUFFERING", a_csv=table(HEAD, rows))
    assert finding.level == "suspected"
    assert "bursts of 40" in finding.statement
