"""Wrong metrics on record in other load tools, each as a case that must come out right here.

The numbers of the cases are those under which the project keeps them. This file: what is computed of one stream. What a
client does to a whole run is in `test_wrong_clients`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.thresholds import MS
from tests.probe.raw_server import END, HEAD, Call, RawServer, chunk, last, serving, token
from tests.probe.running import run, spec_for
from tests.probe.truth_server import REQUESTS, TOKENS, Played, TruthServer, play, true_metrics, truth_report

Play = Callable[[str], Played]
shared = pytest.mark.needs("shared")
DONE = b"data: [DONE]\n\n"


@shared
def test_c1_the_ttft_is_no_gap(played: Play):
    """It was appended to the list of gaps: forty of them for forty tokens, the first five times too long."""
    result = played("plain")
    for record in result.records:
        assert record.timeline is not None
        stamps = record.timeline.token_stamps()
        assert record.ttft_ns == stamps[0]
        assert record.chunk_gap_count == len(stamps) - 1 == TOKENS - 1
        assert record.chunk_gap_max_ns == max(b - a for a, b in pairwise(stamps))
    gaps = result.summary.metrics["chunk_gap_ms"]
    assert gaps.n == REQUESTS * (TOKENS - 1)
    assert gaps.mean == pytest.approx(20, abs=2)  # with the TTFT among them: 22


@shared
def test_c2_the_mean_per_token_is_the_same_whichever_way_it_is_taken(played: Play):
    """Mean "ITL" 213 ms beside mean TPOT 67 ms of one run: gaps of events beside tokens."""
    metrics = played("spec:usage=continuous").summary.metrics
    assert metrics["itl_ms"].mean is not None
    assert metrics["itl_ms"].mean == pytest.approx(metrics["tpot_ms"].mean, rel=0.001)
    assert metrics["itl_ms"].n == REQUESTS * (TOKENS - 1)
    assert metrics["chunk_gap_ms"].mean == pytest.approx(3 * metrics["itl_ms"].mean, rel=0.05)


@shared
def test_c3_the_gap_of_a_chunk_is_not_called_the_latency_of_a_token(played: Play):
    """With speculation 40 ms stood where a token took 13.3. Where nobody says how many tokens an event brought, there
    is no latency per token of single events, and the summary says why.
    """
    silent = played("spec").summary.metrics
    assert (silent["itl_ms"].n, silent["itl_ms"].mean) == (0, None)
    assert "how many tokens" in (silent["itl_ms"].reason or "")
    assert silent["chunk_gap_ms"].mean == pytest.approx(40, abs=3)
    told = played("spec:usage=continuous").summary.metrics
    assert told["itl_ms"].mean == pytest.approx(13.3, abs=1.0)


@shared
@pytest.mark.parametrize("scenario", ["role_early", "empty_first"])
def test_c4_a_chunk_without_a_token_is_no_first_token(scenario: str, played: Play):
    """TTFT 5 ms where the first token took 214; and the first gap held what the TTFT lacked."""
    for record in played(scenario).records:
        assert record.ttft_ns is not None
        assert record.ttft_ns >= 299 * MS
        assert record.chunk_gap_count == TOKENS - 1
        assert (record.chunk_gap_p50_ns or 0) < 60 * MS


@shared
@pytest.mark.parametrize("scenario", ["late_usage", "late_done"])
def test_c5_usage_and_end_marker_extend_nothing(scenario: str, played: Play):
    """TPOT 35.4 for 20.0 and E2E 1,490 for 880: the clock ran until `[DONE]`. And the TTFT is the very stamp from which
    the first gap counts, not that of a second look at the clock.
    """
    for record in played(scenario).records:
        assert record.timeline is not None
        stamps = record.timeline.token_stamps()
        assert record.e2e_last_token_ns == stamps[-1]
        assert record.ttft_ns == stamps[0]
        assert record.tpot_ns == round((stamps[-1] - stamps[0]) / (TOKENS - 1))
        assert record.e2e_ns is not None
        assert record.e2e_ns - stamps[-1] > 450 * MS


@shared
@pytest.mark.parametrize("scenario", ["reasoning", "reasoning_alt"])
def test_c6_reasoning_counts(scenario: str, played: Play):
    """TTFT 784 for 105, TPOT 4.6 for 19.9, 9 gaps of 39: thirty of forty tokens were not seen."""
    for record in played(scenario).records:
        assert (record.output_tokens, record.chunk_gap_count) == (TOKENS, TOKENS - 1)
        assert record.ttft_ns is not None
        assert record.ttft_content_ns is not None
        assert record.ttft_content_ns - record.ttft_ns > 550 * MS
        assert record.tpot_ns == pytest.approx(20 * MS, rel=0.1)


@shared
def test_c7_stalls_are_in_the_gaps_and_no_mean_goes_by_their_name(truth: TruthServer, tmp_path: Path):
    """An "ITL p99" of 27.5 ms where 1 % of the gaps were stalls of 180 ms: it was the p99 of means."""
    result = play(truth, "mixed:stall_prob=0.03", tmp_path, requests=16, tokens=100, concurrency=16)
    assert result.wrong_facts == []
    true = truth_report(result.sent)["gaps"]
    metrics = result.summary.metrics
    assert true["p99"] > 180
    assert metrics["chunk_gap_ms"].n == true["n"]
    assert metrics["chunk_gap_ms"].p99 == pytest.approx(true["p99"], rel=0.1)
    assert (metrics["tpot_ms"].max or 1e9) < 60, "which is what the mean of a request says of it"


def test_c8_tpot_is_of_a_request_and_has_no_ttft_in_it(tmp_path: Path):
    """(last - start) / n had the TTFT in it: 15.6 for 13.3. And a mean weighted by tokens is of no request."""

    async def script(call: Call) -> None:
        await call.answer(tokens=2 if call.number == 0 else 21, first_s=0.3, gap_s=0.2 if call.number == 0 else 0.01)

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url, requests=2, mix="a=10/21"), tmp_path)
    few, many = sorted((record.tpot_ns or 0 for record in result.records), reverse=True)
    assert few == pytest.approx(200 * MS, rel=0.15)
    assert many < 20 * MS  # with the TTFT of 300 ms in it: 24 at least
    tpot = result.summary.metrics["tpot_ms"]
    assert tpot.n == 2
    assert tpot.mean == pytest.approx((few + many) / 2 / MS)  # weighted by its gaps it would be near 20


@shared
def test_c9_tokens_of_the_first_chunk_have_no_gap(played: Play):
    """n - 1 counts three tokens too many where the first of the chunks held four. What is known per event is divided by
    what the later events brought; the TPOT keeps its definition, which its name is for.
    """
    result = played("spec:tokens_per_event=4+4,usage=continuous")
    metrics = result.summary.metrics
    assert metrics["itl_ms"].n == REQUESTS * (TOKENS - 4)
    assert metrics["itl_ms"].mean == pytest.approx(10, abs=0.7)
    true = [true_metrics(row)["tpot"] for row in result.sent]
    assert metrics["tpot_ms"].mean == pytest.approx(float(np.mean(true)), abs=0.3)


@shared
def test_c10_events_never_sum_to_more_than_the_answer(played: Play):
    """A start token was added to each chunk that was tokenised again: twice the tokens, half the latency."""
    for scenario in ("cont_usage", "spec:usage=continuous"):
        for record in played(scenario).records:
            assert record.timeline is not None
            brought = [n for n in record.timeline.tokens if n > 0]
            assert sum(brought) == record.output_tokens == TOKENS


@shared
@pytest.mark.parametrize("path", ["", "/v1/completions"])
@pytest.mark.parametrize(("model", "source"), [("early_eos", "usage"), ("early_eos:usage=none", "chunks")])
def test_c11_what_was_asked_for_is_not_what_came(
    model: str, source: str, path: str, truth: TruthServer, tmp_path: Path
):
    """Where usage was missed, the requested length was taken for the length: 40 for 25."""
    result = play(truth, model, tmp_path, requests=3, path=path)
    assert result.wrong_facts == []
    assert {(record.output_tokens, record.output_tokens_source) for record in result.records} == {(25, source)}
    assert {record.max_tokens for record in result.records} == {TOKENS}


@shared
def test_c12_the_busiest_second_is_no_slower_than_the_mean(played: Play):
    """A "peak" of 113 tokens/s beside a mean of 411: events were counted there, tokens here."""
    result = played("spec:usage=continuous")
    at: list[float] = []
    events = 0
    for record in result.records:
        assert record.timeline is not None
        events += len(record.timeline.token_stamps())
        for stamp, tokens in zip(record.timeline.at_ns, record.timeline.tokens, strict=True):
            at += [(record.run_offset_ns or 0) + stamp] * max(tokens, 0)
    assert len(at) == REQUESTS * TOKENS > 2 * events
    seconds = REQUESTS / result.summary.requests_per_s
    busiest = np.histogram(np.asarray(at) / 1e9, bins=10, range=(0, seconds))[0].max() / (seconds / 10)
    assert busiest >= result.summary.tokens_per_s > 2 * events / seconds


@shared
def test_c13_a_failure_with_good_looks_is_none_of_the_answers(played: Play):
    """An error inside a 200 was a success of half the tokens in half the time."""
    result = played("error_event:error_event_prob=0.5")
    failed = [record for record in result.records if record.outcome is OutcomeKind.FAILED]
    assert failed
    assert {record.http_status for record in failed} == {200}
    assert result.summary.errors == {"engine_crash": len(failed)}
    whole = result.completed()
    assert result.summary.metrics["e2e_ms"].n == len(whole)
    assert (result.summary.metrics["e2e_ms"].min or 0) > 850, "the failures ended at half of that"
    assert result.summary.tokens_per_s == pytest.approx(TOKENS * result.summary.requests_per_s)


def test_c13_an_answer_of_nothing_has_no_latency_of_a_token(tmp_path: Path):
    """A prompt that was too long brought an empty stream: "TTFT 0, TPOT 0.33 ms"."""

    async def nothing(call: Call) -> None:
        await call.send(HEAD, chunk(DONE), END)

    async def script(call: Call) -> None:
        await (nothing(call) if call.number < 2 else call.answer())

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url, requests=4), tmp_path)
    for record in result.records[:2]:
        assert (record.ttft_ns, record.tpot_ns, record.output_tokens) == (None, None, None)
    assert result.summary.metrics["ttft_ms"].n == 2
    assert (result.summary.metrics["ttft_ms"].min or 0) > 0
    assert result.summary.metrics["tpot_ms"].n == 2


def test_c19_text_is_not_counted_again(tmp_path: Path):
    """A hundred spaces became a handful of tokens when they were tokenised again."""
    spaces = [b" " * 100, *[b" " * (1 + n % 3) for n in range(9)]]

    async def script(call: Call) -> None:
        await call.send(HEAD)
        for text in spaces:
            await call.send(chunk(token(text.decode())))
            await asyncio.sleep(0.002)
        await (call.send(chunk(last(100)), END) if call.number else call.send(chunk(DONE), END))

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url, requests=2), tmp_path)
    counted = {(record.output_tokens, record.output_tokens_source) for record in result.records}
    assert counted == {(100, "usage"), (10, "chunks")}


# -- the details of event streams


@shared
@pytest.mark.parametrize("scenario", ["plain", "crlf"])
def test_either_line_end_is_one(scenario: str, played: Play):
    """CRLF failed every request where events were split at two line feeds."""
    result = played(scenario)
    assert result.summary.errors == {}
    assert {record.chunk_gap_count for record in result.records} == {TOKENS - 1}


def test_events_of_one_read_have_its_stamp(tmp_path: Path):
    async def script(call: Call) -> None:
        await call.send(HEAD)
        for _ in range(3):
            await asyncio.sleep(0.05)
            await call.send(chunk(token() * 4))
        await call.send(chunk(last(12)), END)

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url, mix="a=10/12"), tmp_path)
    for record in result.records:
        assert record.timeline is not None
        gaps = [b - a for a, b in pairwise(record.timeline.token_stamps())]
        assert [gap == 0 for gap in gaps] == [True, True, True, False] * 2 + [True] * 3


def test_comments_between_tokens_are_no_gaps(tmp_path: Path):
    async def script(call: Call) -> None:
        await call.send(HEAD, chunk(b": ping\n\n"))
        for _ in range(3):
            await call.send(chunk(b": ping\r\n\r\n"), chunk(token()), chunk(b":\n\n"))
            await asyncio.sleep(0.02)
        await call.send(chunk(last(3)), END)

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url), tmp_path)
    assert result.summary.errors == {}
    assert {record.chunk_gap_count for record in result.records} == {2}


@pytest.mark.parametrize("named", [b"", b"event: error\n"])
def test_an_error_in_mid_stream_is_one_under_any_event_name(named: bytes, tmp_path: Path):
    """Only `event: error` was one to some tools, and nothing was to others."""

    async def script(call: Call) -> None:
        frame = named + b'data: {"error": {"message": "out of memory", "code": 500}}\n\n'
        await call.send(HEAD, chunk(token()), chunk(frame), chunk(DONE), END)

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url), tmp_path)
    assert {record.reason for record in result.records} == {Reason.ENGINE_CRASH}
    assert all("out of memory" in record.error for record in result.records)
    assert result.summary.metrics["ttft_ms"].n == 0
