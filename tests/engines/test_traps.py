"""The engines' traps, and where each is tested: thirty-six ways in which a number or a status misleads.

A trap without a test is one that comes back. The tests named here are looked for, not run.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

TRAPS: dict[str, tuple[str, ...]] = {
    "a role frame is not the first token": (
        "engines/test_vllm.py::test_role_frame_is_not_first_token",
        "measure/test_meter.py::test_role_frame_is_not_first_token_even_in_the_same_packet",
    ),
    "a frame with empty content may hold a token": ("engines/test_vllm.py::test_empty_content_token_counts",),
    "a chunk may hold many tokens": ("measure/test_meter.py::test_multi_token_chunk_tells_chunk_gap_and_tpot_apart",),
    "keep-alive comments are no progress": (
        "engines/test_vllm.py::test_keep_alive_comment_does_not_feed_first_token_timer",
        "wire/test_budgets.py::test_comments_role_frames_and_empty_frames_do_not_feed_the_first_token_budget",
    ),
    "an error may come inside a 200": (
        "engines/test_vllm.py::test_error_inside_200_is_a_rejection",
        "wire/test_faults.py::test_an_error_in_the_first_frame_becomes_the_real_status",
    ),
    "[DONE] follows an error": ("engines/test_vllm.py::test_error_then_done_is_failed",),
    "an engine may fall silent": (
        "wire/test_budgets.py::test_idle_in_mid_stream",
        "wire/test_engine_lost.py::test_frozen_in_mid_stream",
    ),
    "an end without [DONE] is a cut, but not Triton's": (
        "engines/test_triton.py::test_done_missing_is_stream_cut_elsewhere",
        "engines/test_triton.py::test_end_without_done_is_ok_when_clean",
    ),
    "status lines come early or late": ("engines/test_headers_time.py::test_headers_early_or_late",),
    "llama.cpp's queue ends with its status line": (
        "engines/test_llamacpp.py::test_llamacpp_queue_from_header_time",
        "real/test_llamacpp_stages.py",
    ),
    "progress frames are no text and are taken out": (
        "engines/test_llamacpp.py::test_return_progress_frames_stripped_and_not_text",
    ),
    "vLLM's per-request ttft is the prefill": (
        "engines/test_vllm.py::test_vllm_metrics_ttft_is_prefill",
        "wire/test_engine_inquiry.py::test_vllms_timings_come_in_a_frame_that_the_client_never_sees",
    ),
    "usage is asked for and taken out": (
        "engines/test_registry.py::test_include_usage_injected_and_cut_only_where_the_client_did_not_ask",
        "wire/test_usage_frame.py::test_usage_is_asked_for_and_cut_out_again",
    ),
    "SGLang's prefill attribute includes the queue": (
        "engines/test_sglang.py::test_sglang_prefill_attribute_includes_queue",
    ),
    "SGLang aborts in two shapes with five messages": (
        "engines/test_sglang.py::test_sglang_abort_shapes",
        "engines/test_sglang.py::test_a_bare_abort_has_lost_its_reason",
    ),
    "Triton gives one 503 for two reasons": ("engines/test_triton.py::test_triton_same_503_two_reasons",),
    "Triton's 200 may hold an error": (
        "engines/test_triton.py::test_triton_200_error_body",
        "real/test_triton_http.py::test_generate_of_a_model_that_streams_is_a_failure_with_status_200",
    ),
    "Triton's durations of streams mean nothing": ("engines/test_triton.py::test_triton_stream_durations_ignored",),
    "metrics are renamed": (
        "engines/test_vllm.py::test_alias_first_present_wins",
        "engines/test_metric_names.py::test_a_renamed_metric_is_reported_and_its_signal_absent",
    ),
    "_created series are no metrics": ("engines/test_vllm.py::test_created_series_dropped",),
    "iteration_tokens_total is a histogram": ("engines/test_vllm.py::test_iteration_tokens_total_is_histogram",),
    "vLLM's phase histograms begin at 0.3 s": (
        "engines/test_vllm.py::test_buckets_below_300ms_refused",
        "engines/test_histogram_delta.py::test_buckets_below_300ms_refused_in_a_captured_scrape",
    ),
    "SGLang's buckets cannot tell 500 ms": ("engines/test_histogram_delta.py::test_sglang_500ms_slo_not_readable",),
    "vLLM does not count aborted requests": (
        "engines/test_beside.py::test_abort_counter_zero_but_gateway_counts_cancel",
    ),
    "an engine's percentiles are those of the survivors": ("engines/test_beside.py::test_survivor_bias_note",),
    "the wait of a preempted request is no slow decode": ("engines/test_liveness.py::test_preemption_wait_attributed",),
    "/health is 200 while the engine stands still": (
        "engines/test_liveness.py::test_health_200_but_frozen",
        "wire/test_engine_state.py::test_health_200_but_frozen_is_not_ready",
    ),
    "/health is 200 while the engine drains": ("wire/test_engine_state.py::test_draining_200",),
    "two requests may have one id": ("wire/test_request_ids.py::test_duplicate_request_id",),
    "a trace flag decides about spans": (
        "gateway/test_parts.py::test_an_unsound_one_starts_a_trace_that_is_not_sampled",
        "gateway/test_trace_share.py::test_traceparent_flag_00_no_span",
        "gateway/test_trace_share.py::test_triton_never_gets_sampled_1_for_all",
    ),
    "an importer must drop false inter-token times": (
        "diagnose/test_vllm_bench.py::test_bench_import_drops_fake_zero_itl",
    ),
    "chunked prefill makes p99 better and p95 worse": (
        "analyze/test_verdict.py::test_trade_offs_are_sorted_and_say_each_thing_once",
        "simulate/test_run.py::test_unchunked_prefill_makes_rare_giant_gaps_and_chunked_many_medium_ones",
    ),
    "one giant gap is a stall": ("measure/test_stall.py::test_one_giant_gap_is_a_stall_of_its_own",),
    "priorities have opposite signs": (
        "engines/test_vllm.py::test_priority_sign_lower_goes_first",
        "engines/test_sglang.py::test_priority_sign_higher_goes_first",
        "engines/test_triton.py::test_priority_one_is_the_highest",
    ),
    "a foreign server may answer on the port": ("wire/test_engine_state.py::test_foreign_server_on_port",),
    "metrics may take ten seconds": (
        "wire/test_scraping.py::test_slow_metrics_endpoint",
        "wire/test_engine_inquiry.py::test_a_slow_answer_about_itself_delays_no_request",
    ),
}


@cache
def names_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def test_there_are_thirty_six() -> None:
    assert len(TRAPS) == 36


@pytest.mark.parametrize("trap", TRAPS)
def test_every_trap_is_tested_where_it_says(trap: str) -> None:
    places = TRAPS[trap]
    assert places
    for place in places:
        file, _, name = place.partition("::")
        assert (TESTS / file).is_file(), place
        assert not name or name in names_in(TESTS / file), place
