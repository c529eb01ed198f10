import pytest

from tailrace.model.finding import Action, Layer, Level
from tailrace.store.run_file import RunHeader
from tests.diagnose.simulated import (
    UNCHUNKED,
    answer,
    as_client,
    as_gateway,
    codes,
    found,
    served,
    without_state,
)

CODE = "SCHED_PREFILL_STEALS_DECODE"


@pytest.mark.parametrize(("seed", "rate", "share"), [(1, 6.0, 0.1), (2, 7.0, 0.15), (3, 3.0, 0.1), (4, 9.0, 0.05)])
def test_names_it_first_from_the_gateways_records(seed, rate, share):
    result = answer(as_gateway(served(seed, rate=rate, long_share=share, **UNCHUNKED)))
    first = result.findings[0]
    assert (first.code, first.layer, first.level) == (CODE, Layer.SCHEDULER, Level.CONSISTENT)
    assert first.action is result.action is Action.TUNE
    assert "R9" in result.triage
    assert first.explains_ms is not None
    assert first.explains_ms > 500
    assert first.missing == []


def test_the_relation_is_the_engines_own_prefill_rate():
    # An A100 computes 16,000 to 17,000 prompt tokens a second (model of the preset).
    finding = answer(as_gateway(served(**UNCHUNKED))).findings[0]
    rate = float(finding.relation.split("tokens / ")[1].split(" tokens/s")[0].replace(",", ""))
    assert 14_000 < rate < 18_000
    assert "median error" in finding.relation


def test_every_number_of_the_statement_is_in_the_evidence():
    finding = answer(as_gateway(served(**UNCHUNKED))).findings[0]
    import re

    text = " ".join(item.text for item in finding.evidence)
    for number in re.findall(r"\d[\d,.]*\d|\d", finding.statement):
        assert number in text, (number, finding.statement, text)
    assert all(item.source for item in finding.evidence)


def test_from_a_client_alone_it_is_suspected_with_its_rival():
    result = answer(as_client(served(**UNCHUNKED)))
    first = result.findings[0]
    assert (first.code, first.level) == (CODE, Level.SUSPECTED)
    # A front end that tokenises on its event loop stops the streams in the same way.
    assert first.rivals == ["FE_EVENTLOOP_BLOCK"]
    assert first.missing
    assert any(need.startswith(CODE) for need in result.needs)
    assert "to decide, measure" in result.summary


def test_without_scrapes_the_level_falls():
    first = answer(without_state(as_gateway(served(**UNCHUNKED)))).findings[0]
    assert (first.code, first.level) == (CODE, Level.SUSPECTED)
    assert any("preemption counter" in text for text in first.missing)


def test_without_timelines_it_cannot_run_and_says_so():
    import msgspec

    records = [msgspec.structs.replace(r, timeline=None) for r in as_client(served(**UNCHUNKED))]
    result = answer(records)
    assert CODE not in codes(result)
    assert any(need.startswith(f"{CODE}: timelines") for need in result.needs)


def test_without_timelines_the_longest_gaps_and_the_engines_own_prefills_tell_it():
    import msgspec

    records = [msgspec.structs.replace(r, timeline=None) for r in as_gateway(served(**UNCHUNKED))]
    finding = found(answer(records), CODE)
    assert finding is not None
    assert finding.level is Level.CONSISTENT
    assert finding.relation.startswith("longest gap / prefill = ")

    # The same gaps in other streams lie beside no prefill that is as long.
    gaps = [r.chunk_gap_max_ns for r in records if r.chunk_gap_max_ns]
    others = iter(gaps[37:] + gaps[:37])
    moved = [msgspec.structs.replace(r, chunk_gap_max_ns=next(others)) if r.chunk_gap_max_ns else r for r in records]
    assert CODE not in codes(answer(moved))


def in_pieces(seed, most, *, share=0.05):
    """Long prompts in pieces of a large step, each of at most `most` tokens (0: the whole step)."""
    at_once = {"max_num_batched_tokens": 4096, "long_prefill_token_threshold": most}
    return as_gateway(served(seed, rate=3.0, n=800, long_share=share, long_tokens=(9000, 12_000), **at_once))


@pytest.mark.parametrize("timelines", [True, False])
def test_pieces_that_stop_the_streams_are_named_where_those_of_before_stopped_nobody(timelines):
    import msgspec

    def seen(records):
        return records if timelines else [msgspec.structs.replace(r, timeline=None) for r in records]

    now, before, no_documents = (seen(in_pieces(1, 0)), seen(in_pieces(2, 1024)), seen(in_pieces(2, 1024, share=0.0)))
    finding = found(answer(now, before=before), CODE)
    assert finding is not None
    assert finding.level is Level.CONSISTENT
    assert CODE not in codes(answer(now)), "pieces of a quarter of a second, and nothing to compare with"
    assert CODE not in codes(answer(now, before=seen(in_pieces(2, 0)))), "they stopped the streams before as well"
    heavier = answer(now, before=no_documents)
    assert CODE not in codes(heavier), "what is new is the documents"
    assert heavier.findings[0].code == "MIX_SHIFT"


@pytest.mark.parametrize("budget", [512, 1024, 2048])
@pytest.mark.parametrize("rate", [3.0, 6.0, 9.0])
@pytest.mark.parametrize("view", [as_gateway, as_client])
def test_never_with_chunked_prefill(budget, rate, view):
    assert CODE not in codes(answer(view(served(rate=rate, max_num_batched_tokens=budget))))


@pytest.mark.parametrize("view", [as_gateway, as_client])
def test_not_without_long_prompts(view):
    result = answer(view(served(long_share=0.0, **UNCHUNKED)))
    assert result.findings == []
    assert result.action is Action.NONE


def test_stalls_at_other_times_are_not_it():
    # The same stalls, moved away from the prefills: every stream's gaps are rotated by its own amount.
    import msgspec
    import numpy as np

    rng = np.random.default_rng(0)
    moved = []
    for record in as_gateway(served(**UNCHUNKED)):
        line = record.timeline
        stamps = np.array(line.at_ns[:-1])
        gaps = rng.permutation(np.diff(stamps))
        at = [int(x) for x in np.concatenate([[stamps[0]], stamps[0] + np.cumsum(gaps)])]
        moved.append(msgspec.structs.replace(record, timeline=msgspec.structs.replace(line, at_ns=[*at, at[-1]])))
    assert CODE not in codes(answer(moved))


def test_a_full_kv_cache_is_named_as_the_rival():
    import msgspec

    records = [msgspec.structs.replace(r, kv_usage_at_admission=0.99) for r in as_gateway(served(**UNCHUNKED))]
    finding = found(answer(records), CODE)
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert finding.rivals == ["SCHED_KV_PREEMPTION"]


def test_the_advice_names_the_knob_that_is_set():
    header = RunHeader(knobs={"enable_chunked_prefill": False})
    assert "Switch chunked prefill on" in answer(as_gateway(served(**UNCHUNKED)), header=header).findings[0].advice
    unknown = answer(as_gateway(served(**UNCHUNKED))).findings[0].advice
    assert "if it is off" in unknown


def test_a_sample_of_the_timelines_is_enough():
    # A gateway keeps the timelines of slow requests and of 1 % of the others.
    import msgspec

    records = [
        r if r.chunk_gap_max_ns > 150_000_000 or i % 100 == 0 else msgspec.structs.replace(r, timeline=None)
        for i, r in enumerate(as_gateway(served(rate=3.0, **UNCHUNKED)))
    ]
    first = answer(records).findings[0]
    assert (first.code, first.level) == (CODE, Level.CONSISTENT)
