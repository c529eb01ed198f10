"""Prompts that are exact in tokens: against a server that counts with the same tokenizer, and with another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.measure.token_counter import TokenCounter
from tailrace.model.errors import InputError
from tailrace.probe.tokenizer import load_tokenizer
from tailrace.workload.text import pool_words
from tests.probe.raw_server import END, HEAD, Call, RawServer, chunk, last, serving, token
from tests.probe.running import run, spec_for

_TEMPLATE_TOKENS = 11


def trained(folder: Path, words: list[str], size: int) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator([" " + " ".join(words)] * 4, trainer)
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    return folder


def counting(counter: TokenCounter):
    async def script(call: Call) -> None:
        count = int(counter.count([call.body["messages"][0]["content"]])[0]) + _TEMPLATE_TOKENS
        await call.send(HEAD, chunk(token()), chunk(last(1, prompt=count)), END)

    return script


@pytest.mark.needs("tokenizers")
def test_every_prompt_is_exact_and_the_template_is_counted_in(tmp_path: Path):
    folder = trained(tmp_path / "model", sorted(set(pool_words(0))), 4000)
    script = counting(load_tokenizer(str(folder)))
    with serving(RawServer(script, look=script)) as server:
        spec = spec_for(server.url, mix="a=30-3000/1", tokenizer=str(folder), chars_per_token=None, requests=40)
        result = run(spec, tmp_path)
    work = result.summary.work
    assert work is not None
    assert work.prompts is not None
    assert (work.prompts.exact, work.prompts.n) == (40, 40)
    assert work.prompts.planned_tokens == work.prompts.counted_tokens
    assert len({r.prompt_tokens for r in result.records}) > 20
    assert any("11 tokens of overhead" in note for note in result.run.header.notes)
    assert not any("beside the tokenizer" in note for note in result.run.header.notes)


@pytest.mark.needs("tokenizers")
def test_a_tokenizer_that_is_not_the_models_is_noticed(tmp_path: Path):
    words = sorted(set(pool_words(0)))
    mine, theirs = trained(tmp_path / "mine", words, 4000), trained(tmp_path / "theirs", words[:100], 600)
    script = counting(load_tokenizer(str(theirs)))
    with serving(RawServer(script, look=script)) as server:
        result = run(spec_for(server.url, tokenizer=str(mine), chars_per_token=None), tmp_path)
    assert any("is it the one of m?" in note for note in result.run.header.notes)


def test_what_is_no_tokenizer_is_said_before_any_request(tmp_path: Path):
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text("{}")
    with serving(RawServer(Call.answer)) as server:
        for path in (str(tmp_path), str(tmp_path / "none.json")):
            with pytest.raises(InputError, match="cannot be read"):
                run(spec_for(server.url, tokenizer=path), tmp_path)
    assert server.looks == []
