"""What the columns of a table of requests are called, by us and by those who write one.

Ours (durations and stamps in ms): `t_intended_ms`, `t_send_ms`, `t_first_ms`, `t_last_ms`, `status` (`ok`, `error`,
`timeout`, `cancelled`), `http_status`, `error`, `bytes_received`, `retry_of`, `prompt_tokens`, `cached_tokens`,
`new_tokens`, `output_tokens`, `usage_completion_tokens`, `chunks`, `accept_len`, `group`, `arm`, `replica`,
`session_id`, `in_flight`, `queue_ms`, `preprocess_ms`, `prefill_ms`, `decode_ms`, `postprocess_ms`, `engine_running`,
`engine_waiting`, `wall`, `grammar`. Any other column keeps its own name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tailrace.diagnose.readers.heading import heading as wording
from tailrace.diagnose.readers.headings import heading

__all__ = ["DURATIONS", "STAMPS", "TEXTS", "canonical", "column_of", "looks_like_requests"]

STAMPS: Final = ("t_intended_ms", "t_send_ms", "t_first_ms", "t_last_ms")
DURATIONS: Final = (
    *("ttft_ms", "e2e_ms", "tpot_ms", "itl_ms", "late_ms"),
    *("queue_ms", "preprocess_ms", "encode_ms", "prefill_ms", "decode_ms", "postprocess_ms"),
)
TEXTS: Final = frozenset({"id", "status", "error", "retry_of", "group", "arm", "replica", "session_id", "wall"})

_SYNONYMS: Final[Mapping[str, str]] = {
    "t_intended_ms": "t_intended intended intended_start intended_time ts_intended scheduled scheduled_time schedule "
    "t_scheduled ts_scheduled planned due t_due arrival_planned target_time",
    "t_send_ms": "t_send send sent ts_send send_ts send_time sent_at t_sent ts_sent time_sent start start_time t_start "
    "ts_start start_ts request_start started started_at request_time_start begin t_begin submit submitted submit_time "
    "t_submit request_sent dispatch dispatched fired issued posted t0 t_request start_timestamp",
    "t_first_ms": "t_first first ts_first first_ts first_token t_first_token first_token_time first_token_at "
    "ts_first_token time_first_token first_token_ts first_token_received first_byte t_first_byte first_byte_time "
    "first_chunk t_first_chunk first_chunk_time first_response t1 first_content first_audio t_first_audio "
    "first_audio_time",
    "t_last_ms": "t_last last ts_last last_ts last_token t_last_token last_token_time last_token_at ts_last_token "
    "last_chunk last_byte last_chunk_time end t_end ts_end end_ts end_time ended ended_at finish finished finish_time "
    "finished_at t_finish done t_done done_at complete completed_at completion_time t_complete t2 stop_time "
    "end_timestamp",
    "ttft_ms": "ttft time_to_first_token first_token_latency ttfb ttft_latency time_to_first first_token_delay "
    "time_to_first_byte time_to_first_chunk ttfa time_to_first_audio",
    "e2e_ms": "e2e e2el latency duration e2e_latency total_time total_latency request_latency end_to_end "
    "end_to_end_latency elapsed elapsed_time request_time response_time total age age_at_failure failure_age "
    "age_at_end died_after failed_after lifetime age_at_cut aborted_after cut_after died_at_age ended_after "
    "closed_after",
    "tpot_ms": "tpot time_per_output_token",
    "itl_ms": "itl inter_token_latency mean_itl avg_itl",
    "late_ms": "dispatch_delay schedule_delay send_delay start_delay",
    "queue_ms": "queue queue_time queue_wait queue_delay wait_time time_in_queue waiting queued stage_queue",
    "preprocess_ms": "preprocess preprocess_time preprocessing preproc pre_processing tokenize tokenise "
    "tokenize_time tokenization stage_preprocess",
    "encode_ms": "encode encode_time encoder encoder_time stage_encode vit vit_time vision_encode vision_encoder "
    "image_encode encoding mm_encode audio_encode",
    "prefill_ms": "prefill prefill_time stage_prefill",
    "decode_ms": "decode decode_time decoding stage_decode",
    "postprocess_ms": "postprocess postprocess_time postprocessing postproc post_processing detokenize "
    "stage_postprocess",
    "status": "status outcome result state success succeeded ok is_ok completed_ok",
    "http_status": "http_status status_code http_code code http_status_code response_code",
    "error": "error err error_message exception failure reason error_type",
    "bytes_received": "bytes_received bytes received_bytes bytes_sent response_bytes bytes_in rx_bytes body_bytes",
    "retry_of": "retry_of retries_of original_id",
    "prompt_tokens": "prompt_tokens input_tokens prompt_toks input_toks prompt_len input_len isl prompt_length "
    "input_length n_prompt_tokens "
    "num_prompt_tokens num_input_tokens in_tokens n_input tokens_in context_tokens prompt_size prompt_token_count "
    "input_token_count n_prompt",
    "cached_tokens": "cached_tokens cached_toks cached_prompt_tokens prefix_hit_tokens"
    " num_cached_tokens cache_hit_tokens "
    "cached cached_input_tokens cached_prompt cached_tokens_count tokens_cached "
    "cache_read_input_tokens cache_read_tokens",
    "new_tokens": "new_tokens uncached_tokens prefill_tokens",
    "output_tokens": "output_tokens out_tokens generated_tokens gen_tokens output_len osl output_length "
    "num_output_tokens n_output_tokens n_output tokens_out generation_tokens output_token_count n_generated tokens",
    "usage_completion_tokens": "usage_completion_tokens completion_tokens usage_output_tokens server_output_tokens "
    "usage_completion",
    "chunks": "chunks n_chunks num_chunks chunk_count frames sse_events",
    "accept_len": "accept_len accept_length acceptance_length mean_acceptance_length",
    "group": "group class request_class size_class bucket kind category request_type type size prompt_class lane "
    "priority workload",
    "arm": "arm variant experiment config path_arm side",
    "replica": "replica backend worker instance upstream engine node pod server host endpoint_instance dp_rank",
    "session_id": "session_id session conversation conversation_id chat_id user_id",
    "in_flight": "in_flight inflight concurrency concurrent active_requests",
    "engine_running": "engine_running running num_running running_reqs num_requests_running",
    "engine_waiting": "engine_waiting num_waiting waiting_reqs pending num_requests_waiting",
    "wall": "wall wall_time wall_clock datetime date_time",
    "grammar": "grammar structured structured_output structured_outputs json_schema json_mode guided guided_json "
    "guided_regex guided_choice guided_grammar guided_decoding constrained constrained_decoding response_format "
    "has_schema has_grammar with_grammar use_grammar with_schema schema",
    "id": "id request_id conn connection req_id rid req request trace_id index idx uuid query_id name no seq n",
}
_BY_WORD: Final[dict[str, str]] = {
    word: name for name, words in reversed(tuple(_SYNONYMS.items())) for word in words.split()
}
_ARRIVALS: Final = frozenset(
    {"arrival", "arrived", "arrival_time", "t_arrival", "created", "created_at", "enqueued", "enqueued_at", "queued_at"}
)
_HOLDERS: Final = frozenset(
    {
        *("timings", "timing", "times", "timestamps", "stamps", "latency", "latencies", "metrics", "stats"),
        *("request", "response", "usage", "tokens"),
    }
)
"""Objects inside a request's object whose own name says nothing: `timings.first_token`, `usage.completion_tokens`."""
_ALONE: Final = _ARRIVALS | {"received", "received_at", "timestamp", "ts", "t", "time"}
"""The send where nothing else is; where there is a send, an arrival is the intended time, the rest keep their names."""
_NOT_OURS: Final = frozenset(
    {
        *("method", "uri", "path", "url", "user_agent", "response_flags", "upstream_status"),
        *("t_recv", "utt_id", "speech_id", "level", "logger", "msg"),
        *("span", "span_name", "span_id", "operation"),
    }
)
"""Columns of access logs and of speech events: tables of their own."""
_ASKED_FOR: Final = ("max_tokens", "max_new_tokens", "max_completion_tokens", "min_tokens")
"""What a request asks for is no statistic."""
_STAGES: Final = frozenset(DURATIONS[5:])
_FEWEST_STAGES: Final = 3
_BESIDE: Final = frozenset(
    {"prompt_tokens", "output_tokens", "usage_completion_tokens", "cached_tokens"}
    | {"status", "http_status", "error", "bytes_received"}
)
"""What stands beside one duration where a row is a request."""
_STATISTICS: Final = frozenset({"mean", "avg", "median", "p50", "p90", "p95", "p99", "p999", "max", "min", "std"})


_STAMP_WORDS: Final = frozenset(
    {"t", "ts", "at", "time", "timestamp", "stamp", "clock", "unix", "epoch", "utc", "wire"}
)
_AS_QUANTITY: Final = {
    **{name: f"{name}_ms" for name in ("ttft", "e2e", "queue", "prefill", "decode", "tpot", "itl")},
    **{name: name for name in ("prompt_tokens", "output_tokens")},
}
"""Quantities of the general vocabulary that a request has one of."""


def _by_words(name: str, base: str) -> str:
    """What no list of ours names: a stamp's name with other words for a time around it (`first_byte_at`), or a quantity
    in any words for it that a table may use (`time till first token`).
    """
    words = base.split("_")
    if words[-1] in _STAMP_WORDS or words[0] in {"t", "ts", "wire"}:
        bare = "_".join(word for word in words if word not in _STAMP_WORDS)
        return found if (found := _BY_WORD.get(bare, "")) in STAMPS else ""
    rich = wording(name)
    return "" if rich.stat or rich.qualifier or rich.change else _AS_QUANTITY.get(rich.quantity, "")


def column_of(name: str) -> str:
    """Our name of a heading (`send`, `t_send`, `ts send (s)` are all `t_send_ms`); empty where it is none of ours."""
    base = (
        heading(name).name.replace("stage_ms_", "stage_").replace("stages_", "stage_").replace("stages_ms_", "stage_")
    )
    outer, point, inner = name.partition(".")
    if base not in _BY_WORD and point and outer.lower() in _HOLDERS:
        return _BY_WORD.get(heading(inner).name, "")
    return _BY_WORD.get(base) or _by_words(name, base)


def _first_without_send(names: list[str], out: dict[str, str]) -> None:
    """A first token without any stamp beside it, and beside a duration of the whole, is a duration itself."""
    ours = set(out.values())
    stamps = {"t_send_ms", "t_intended_ms", "t_last_ms", "ttft_ms"}
    if not {"t_first_ms", "e2e_ms"} <= ours or ours & stamps or any(heading(name).name in _ALONE for name in names):
        return
    out[next(name for name, one in out.items() if one == "t_first_ms")] = "ttft_ms"


def canonical(headings: Iterable[str], columns: Mapping[str, str] | None = None) -> dict[str, str]:
    """Heading -> our name, its own in snake case where we have none. Two headings never get one name.

    `columns` is what a user said: our name (`t_send_ms`, or a synonym: `send`) -> heading. It goes before everything.
    """
    names = list(headings)
    said = {theirs: column_of(ours) or ours for ours, theirs in (columns or {}).items()}
    out = {name: said[name] for name in names if name in said}
    taken = set(out.values())
    exact = [name for name in names if name not in out and name in _SYNONYMS]
    for name in (*exact, *(name for name in names if name not in out and name not in exact)):
        ours = name if name in _SYNONYMS else column_of(name)
        if ours and ours not in taken:
            out[name] = ours
            taken.add(ours)
    _first_without_send(names, out)
    taken = set(out.values())
    for name in names:
        base = heading(name).name
        if name in out or base not in _ALONE:
            continue
        if "t_send_ms" not in taken:
            out[name] = "t_send_ms"
        elif base in _ARRIVALS and "t_intended_ms" not in taken:
            out[name] = "t_intended_ms"
        else:
            continue
        taken.add(out[name])
    if not taken & {"t_send_ms", "t_intended_ms"}:
        _counted(out, taken, said)
    for name in names:
        if name not in out:
            own = heading(name).name or name
            out[name] = own if own not in taken else name
            taken.add(out[name])
    return out


def _counted(out: dict[str, str], taken: set[str], said: Mapping[str, str]) -> None:
    """`first_token_ms` counts from a send that nobody wrote down."""
    for theirs, ours in out.items():
        counted = {"t_first_ms": "ttft_ms", "t_last_ms": "e2e_ms"}.get(ours, "")
        if counted and counted not in taken and theirs not in said and heading(theirs).unit:
            out[theirs] = counted
            taken.add(counted)


def looks_like_requests(headings: Iterable[str]) -> bool:
    """Whether a table with these headings has one request a row."""
    names = list(headings)
    if len(names) < 2:
        return False
    words = {heading(name).name for name in names if not heading(name).name.endswith(_ASKED_FOR)}
    if words & _NOT_OURS or any(_STATISTICS & set(word.split("_")) for word in words):
        return False
    ours = set(canonical(names).values())
    begins = ours & {"t_send_ms", "t_intended_ms"}
    ends = ours & {"t_first_ms", "t_last_ms", "ttft_ms", "e2e_ms"}
    if begins and ends:
        return True
    timed = any(theirs for theirs, name in canonical(names).items() if name == "queue_ms" and heading(theirs).unit)
    if begins and "id" in ours and timed:
        return True  # when it came, and how long it waited
    # Durations without stamps: one request a row only where rows have names, or lengths of their own.
    return (
        bool(ends & {"ttft_ms", "e2e_ms"})
        and "id" in ours
        and (bool(ours & _BESIDE) or len(ours & _STAGES) >= _FEWEST_STAGES)
    )
