"""Prompts that are exact in tokens, with tokenizers of every kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.measure.token_counter import TokenCounter
from tailrace.workload.exact_text import ExactWriter
from tailrace.workload.prefix import Piece
from tailrace.workload.text import pool_words

Count = Callable[[Sequence[str]], Sequence[float]]


def trained(words: Sequence[str], size: int) -> Count:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator([" " + " ".join(words)] * 4, trainer)
    return TokenCounter(made.to_str()).count


@pytest.fixture(scope="module")
def counts() -> dict[str, Count]:
    pytest.importorskip("tokenizers")
    words = sorted(set(pool_words(0)))
    return {"every word": trained(words, 4000), "some words": trained(words[:100], 600), "no word": trained(words, 330)}


@pytest.mark.needs("tokenizers")
@pytest.mark.parametrize("kind", ["every word", "some words", "no word"])
def test_a_prompt_has_exactly_the_tokens_asked_for(kind: str, counts: dict[str, Count]):
    count = counts[kind]
    writer = ExactWriter(count, seed=2, nonce="n", overhead_tokens=9)
    lengths = [13, 14, 15, 16, 17, 20, 25, 40, 64, 100, 333, 1000, 12_000]
    for pieces in ((), (Piece("a", 30), Piece("b", 500))):
        texts = [writer.write(i, tokens, pieces) for i, tokens in enumerate(lengths)]
        assert [n + 9 for n in count(texts)] == lengths
        assert all(text.isascii() for text in texts)


@pytest.mark.needs("tokenizers")
def test_prompts_differ_between_requests_and_runs(counts: dict[str, Count]):
    writers = [ExactWriter(counts["every word"], seed=2, nonce=nonce) for nonce in ("one", "two")]
    texts = {writer.write(i, 60)[:60] for writer in writers for i in range(200)}
    assert len(texts) == 400
    assert writers[0].write(3, 500) == ExactWriter(counts["every word"], seed=2, nonce="one").write(3, 500)


def merging(texts: Sequence[str]) -> list[float]:
    """A tokenizer that joins two neighbours beginning alike: a text is not the sum of its words."""
    out = []
    for text in texts:
        words = text.split()
        out.append(float(len(words) - sum(a[0] == b[0] for a, b in itertools.pairwise(words))))
    return out


@given(tokens=st.integers(3, 2000), index=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_a_tokenizer_whose_tokens_do_not_add_up_is_asked_for_every_text(tokens: int, index: int):
    writer = ExactWriter(merging, seed=1, nonce="n")
    assert not writer.additive
    (found,) = merging([writer.write(index, tokens)])
    assert found == tokens


def test_what_is_no_tokenizer():
    pytest.importorskip("tokenizers")
    with pytest.raises(ValueError, match=r".+"):
        TokenCounter('{"not": "one"}')
