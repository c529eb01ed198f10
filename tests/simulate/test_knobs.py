"""Knobs: what a running engine accepts, and what it says of the rest."""

from __future__ import annotations

import pytest

from tailrace.model.errors import InputError
from tailrace.simulate.knobs import EngineKnobs, knobs_from


def test_a_change_returns_all_knobs():
    knobs = EngineKnobs().changed({"enable_chunked_prefill": False, "max_num_batched_tokens": 512})
    assert (knobs.enable_chunked_prefill, knobs.max_num_batched_tokens, knobs.max_num_seqs) == (False, 512, 256)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs: 0 is out of range. Use a number of at least 1."),
        ({"max_num_seqs": "many"}, "max_num_seqs: Expected `int`, got `str`"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold: -1 is out of range."),
        ({"policy": "lifo"}, "policy: Invalid enum value 'lifo'"),
        ({"chunked": True}, "chunked: there is no knob 'chunked'. The knobs are max_num_seqs,"),
        ({"num_gpu_blocks": 5}, "num_gpu_blocks: it sizes memory and is fixed at start."),
        ({"max_num_batched_tokens": 100}, "max_num_batched_tokens: 100 is less than max_num_seqs (256)."),
    ],
)
def test_a_bad_change_names_the_knob_and_the_remedy(changes, text):
    with pytest.raises(InputError) as caught:
        EngineKnobs().changed(changes)
    assert str(caught.value).startswith(text)


def test_a_memory_knob_may_be_repeated_as_it_is():
    assert EngineKnobs().changed({"num_gpu_blocks": 27_000}) == EngineKnobs()


def test_a_small_budget_at_start_takes_a_small_batch_with_it():
    assert knobs_from(EngineKnobs(), {"max_num_batched_tokens": 64, "policy": None}).max_num_seqs == 64
    with pytest.raises(InputError, match="less than max_num_seqs"):
        knobs_from(EngineKnobs(), {"max_num_batched_tokens": 64, "max_num_seqs": 65})
