import msgspec
import pytest

from tailrace.diagnose.causes.scheduler.hol_long_prefill import waits_behind_prefill
from tailrace.model.finding import Level
from tests.diagnose.simulated import (
    UNCHUNKED,
    answer,
    as_client,
    as_gateway,
    codes,
    evidence,
    found,
    served,
    without_state,
)

CODE = "SCHED_HOL_LONG_PREFILL"


@pytest.mark.parametrize(("rate", "budget"), [(6.0, 2048), (6.0, 512), (3.0, 512), (9.0, 1024)])
def test_short_requests_behind_documents(rate, budget):
    result = answer(as_gateway(served(rate=rate, max_num_batched_tokens=budget)))
    first = result.findings[0]
    assert (first.code, first.level, first.layer) == (CODE, Level.CONSISTENT, "scheduler")
    assert "lane" in first.advice
    assert "long prompts" in first.price.lower()


def test_from_a_client_it_is_suspected():
    finding = found(answer(as_client(served(rate=6.0, max_num_batched_tokens=512))), CODE)
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert finding.missing[0] == "queue and prefill times from the engine"


def test_without_scrapes_the_level_falls():
    finding = found(answer(without_state(as_gateway(served(rate=6.0, max_num_batched_tokens=512)))), CODE)
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert len(finding.missing) == 1


def test_documents_without_anybody_behind_them_are_not_it():
    # Documents alone: they wait for nobody but themselves.
    assert CODE not in codes(answer(as_gateway(served(rate=1.0, long_share=1.0, max_num_batched_tokens=512))))


def test_a_queue_without_documents_is_not_it():
    for view in (as_gateway, as_client):
        assert CODE not in codes(answer(view(served(rate=25.0, long_share=0.0, max_num_seqs=32))))


def test_waits_that_do_not_depend_on_what_is_ahead_are_not_it():
    # The near miss: everybody waits as long as before, but at other moments than behind a document.
    records = as_gateway(served(rate=6.0, max_num_batched_tokens=512))
    waits = [r.queue_ns for r in records]
    shuffled = waits[200:] + waits[:200]
    out = []
    for record, wait in zip(records, shuffled, strict=True):
        shift = wait - record.queue_ns
        line = record.timeline
        out.append(
            msgspec.structs.replace(
                record,
                queue_ns=wait,
                queue_engine_ns=wait,
                e2e_ns=record.e2e_ns + shift,
                ttft_ns=record.ttft_ns + shift,
                e2e_last_token_ns=record.e2e_last_token_ns + shift,
                timeline=msgspec.structs.replace(line, at_ns=[at + shift for at in line.at_ns]),
            )
        )
    assert CODE not in codes(answer(out))


def test_without_prompt_lengths_it_cannot_run():
    records = [msgspec.structs.replace(r, prompt_tokens=None) for r in as_gateway(served(max_num_batched_tokens=512))]
    result = answer(records)
    assert CODE not in codes(result)
    assert f"{CODE}: prompt lengths" in result.needs


def test_it_stands_beside_stolen_decode_steps_and_not_in_their_place():
    waits = waits_behind_prefill(evidence(as_gateway(served(**UNCHUNKED))).now)
    assert waits.covered_share > 0.9
    assert waits.correlation > 0.5
    result = answer(as_gateway(served(**UNCHUNKED)))
    assert result.findings[0].code == "SCHED_PREFILL_STEALS_DECODE"
