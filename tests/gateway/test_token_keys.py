"""Keys of token limits: which one holds, what is refused, and the tokenizer behind a name."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from tailrace.gateway.config import config_from
from tailrace.gateway.shaper import Shaped, Shaper
from tailrace.gateway.token_keys import TokenLimitsConfig, TokensConfig, resolve
from tailrace.gateway.tokenizer import Tokenizer, Tokenizers
from tailrace.gateway.work import read_work
from tailrace.govern.text_size import TextSize
from tailrace.govern.token_estimate import TokenEstimates
from tailrace.govern.token_limits import UNLIMITED, OutputCaps, Over
from tailrace.model.errors import ConfigError

CHAT = "/v1/chat/completions"
BACKENDS = [{"url": "http://127.0.0.1:1"}]


def test_key_by_key_the_nearest_wins() -> None:
    tokens = TokensConfig(
        routes={
            "*": TokenLimitsConfig(max_prompt=9, max_output=90, allow_truncation=True),
            CHAT: TokenLimitsConfig(max_prompt=8),
        }
    )
    lane = TokenLimitsConfig(max_output=50)
    chat = resolve(lane, tokens, CHAT, chat=True)
    assert (chat.max_prompt, chat.max_output, chat.over) == (8, 50, Over.TRUNCATE)
    text = resolve(lane, tokens, "/v1/completions", chat=False)
    assert (text.max_prompt, text.max_output, text.over) == (9, 50, Over.REFUSE)
    assert resolve(TokenLimitsConfig(over=Over.REFUSE), tokens, CHAT, chat=True).over is Over.REFUSE
    assert resolve(TokenLimitsConfig(allow_truncation=False), tokens, CHAT, chat=True).over is Over.REFUSE
    assert resolve(None, TokensConfig(), CHAT, chat=True) == UNLIMITED


@pytest.mark.parametrize(
    ("part", "place"),
    [
        ({"lanes": [{"name": "a", "tokens": {"max_prompt": 0}}]}, r"lanes\[0\]\.tokens\.max_prompt"),
        ({"lanes": [{"name": "a", "tokens": {"max_output": 5, "default_output": 6}}]}, "default_output"),
        ({"lanes": [{"name": "a", "tokens": {"over": "refuse", "allow_truncation": True}}]}, r"tokens\.over"),
        ({"lanes": [{"name": "a", "tokens": {"over": "maybe"}}]}, "over"),
        ({"lanes": [{"name": "a", "tokens": {"max_promt": 6}}]}, "max_prompt"),
        ({"tokens": {"routes": {"v1/x": {}}}}, "routes"),
        ({"tokens": {"routes": {"/v1/x": {"max_prompt": -1}}}}, r"routes\./v1/x\.max_prompt"),
        ({"tokens": {"exact": "often"}}, "exact"),
        ({"tokens": {"image_tokens": -1}}, "image_tokens"),
        ({"tokens": {"marker": "a\nb"}}, "marker"),
        ({"tokens": {"tokenizers": {"m": "/no/such/file"}}}, r"tokens\.tokenizers"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(part: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config_from({"backends": BACKENDS, **part})
    text = f"{refused.value.place} {refused.value.remedy}"

    assert re.search(place, text), text
    assert refused.value.remedy


def test_a_config_that_uses_all_of_it_loads() -> None:
    config = config_from(
        {
            "backends": BACKENDS,
            "lanes": [{"name": "chat", "tokens": {"max_prompt": 10, "allow_truncation": True, "max_output": 5}}],
            "tokens": {"image_tokens": 500, "marker": "", "routes": {"*": {"default_output": 3, "over": "truncate"}}},
        }
    )
    assert config.lanes[0].tokens is not None
    assert config.lanes[0].tokens.max_prompt == 10


# -- tokenizers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model's folder: every word below is one token."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=2000, show_progress=False, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator([" incomprehensible characteristics of internationalisation"] * 4, trainer)
    path = tmp_path_factory.mktemp("model")
    made.save(str(path / "tokenizer.json"))
    return str(path)


@pytest.mark.needs("tokenizers")
def test_pieces_of_a_long_text_are_counted_as_the_whole(folder: str) -> None:
    tokenizer = Tokenizer(folder)
    text = " incomprehensible characteristics" * 3000
    assert tokenizer.count([text, "", " of"]) == [6000.0, 0.0, 1.0]


@pytest.mark.needs("tokenizers")
def test_names_and_the_file_that_is_none(folder: str, tmp_path) -> None:
    known = Tokenizers()
    known.apply({"a": folder, "b": folder, "*": folder})
    assert known.of("a")[1] is known.of("b")[1], "read once"
    assert known.of("whatever")[0] == "*"
    bad = tmp_path / "tokenizer.json"
    bad.write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read"):
        known.apply({"a": str(bad)})
    assert known.of("b") is not None, "what was known stays"
    known.apply({})
    assert not known
    assert known.of("a") is None


def _shape(
    folder: str, words: int, *, exact: str = "near", bounds: tuple[int, ...] = (), limit: int | None = None
) -> Shaped:
    tokenizers = Tokenizers()
    tokenizers.apply({"m": folder})
    estimates = TokenEstimates()
    for n in range(1, 60):  # 16 bytes a token, as the text below has it, so the error is small
        estimates.learn("m", TextSize(narrow=170 * n), 10 * n)
    shaper = Shaper(
        TokensConfig(exact=exact),
        {"default": TokenLimitsConfig(max_prompt=limit)},
        bounds,
        tokenizers=tokenizers,
        estimates=estimates,
        caps=OutputCaps(),
    )
    raw = json.dumps({"model": "m", "prompt": " incomprehensible" * words}).encode()
    work = read_work(raw)

    work = msgspec.structs.replace(work, prompt_tokens=shaper.estimate(work))
    return shaper.shape("/v1/completions", raw, work, lambda _: "default")


@pytest.mark.needs("tokenizers")
@pytest.mark.parametrize(
    ("more", "source"),
    [
        ({}, "estimate"),
        ({"exact": "always"}, "tokenizer"),
        ({"bounds": (500,)}, "tokenizer"),
        ({"bounds": (4000,)}, "estimate"),
        ({"limit": 505}, "tokenizer"),
        ({"limit": 5000}, "estimate"),
    ],
)
def test_it_is_asked_only_where_the_count_decides(folder: str, more: dict[str, Any], source: str) -> None:
    out = _shape(folder, 500, **more)
    assert out.source == source
    assert out.work.prompt_tokens == pytest.approx(500, rel=0.05)
    assert out.refusal is None
    if source == "tokenizer":
        assert out.work.prompt_tokens == 500


@pytest.mark.needs("tokenizers")
def test_a_refusal_far_above_the_limit_needs_no_exact_count(folder: str) -> None:
    out = _shape(folder, 500, limit=50)
    assert (out.source, out.refusal is not None) == ("estimate", True)
    near = _shape(folder, 500, limit=499)
    assert near.source == "tokenizer"
    assert near.refusal is not None
    assert near.refusal.facts["prompt_tokens"] == 500
