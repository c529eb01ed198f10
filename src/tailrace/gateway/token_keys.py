"""The configuration's keys for token counts and limits, and what is wrong with them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from tailrace.gateway.config_values import Section
from tailrace.govern.token_limits import Over, TokenLimits
from tailrace.model.errors import ConfigError

_T = TypeVar("_T")
ANY: Final = "*"
_LONGEST_MARKER: Final = 400


class TokenLimitsConfig(Section):
    """How many tokens a request may bring and ask for; a key left out leaves it to the route, or does not bound."""

    max_prompt: int | None = None
    """Tokens of the prompt; above it `over` decides."""
    allow_truncation: bool | None = None
    """True makes `truncate` the default of `over` for chats (`/v1/chat/completions`, `/v1/messages`,
    `/v1/responses`)."""
    over: Over | None = None
    """`refuse` (400) or `truncate`, wherever a prompt can be shortened; without it, see `allow_truncation`."""
    max_output: int | None = None
    """Tokens of output at most, of all completions of a request together; what asks for more is capped."""
    default_output: int | None = None
    """Tokens of output of a request that says nothing of it."""


class TokensConfig(Section):
    """How prompts are counted, and the limits of routes."""

    tokenizers: dict[str, str] = msgspec.field(default_factory=dict)
    """Model, as clients name it -> its `tokenizer.json`, or the folder that has it; `"*"` for every other model.
    Needs `tailrace[tokenizers]`."""
    exact: str = "near"
    """With a tokenizer: `near` counts exactly where the estimate is too near to a limit or a lane's bound to decide;
    `always` counts every prompt."""
    image_tokens: int = 0
    """What an image, a piece of audio or a file in a prompt counts for; 0 leaves them out of every count."""
    marker: str = "[... part of this text was left out here to fit the token limit ...]"
    """The line put where something was left out; empty for none."""
    routes: dict[str, TokenLimitsConfig] = msgspec.field(default_factory=dict)
    """Path -> its limits in every lane that has none of its own; `"*"` for every path."""


def resolve(lane: TokenLimitsConfig | None, tokens: TokensConfig, endpoint: str, *, chat: bool) -> TokenLimits:
    """The limits of a lane on a route. Key by key: the lane's own, else the route's, else those of `"*"`."""
    levels = [level for level in (lane, tokens.routes.get(endpoint), tokens.routes.get(ANY)) if level is not None]
    over = _first(level.over for level in levels)
    if over is None:
        over = Over.TRUNCATE if chat and _first(level.allow_truncation for level in levels) else Over.REFUSE
    return TokenLimits(
        max_prompt=_first(level.max_prompt for level in levels),
        over=over,
        max_output=_first(level.max_output for level in levels),
        default_output=_first(level.default_output for level in levels),
    )


def _first(values: Iterable[_T | None]) -> _T | None:
    return next((value for value in values if value is not None), None)


def check_limits(limits: TokenLimitsConfig, *, place: str) -> None:
    """Refuse limits that leave nothing, or that contradict each other. Raises `ConfigError`."""
    for name in ("max_prompt", "max_output", "default_output"):
        value: int | None = getattr(limits, name)
        if value is not None and value < 1:
            raise ConfigError(
                f"{value} tokens leave nothing",
                place=f"{place}.{name}",
                remedy="Write at least 1, or leave the key out for no limit.",
            )
    if limits.max_output is not None and (limits.default_output or 0) > limits.max_output:
        raise ConfigError(
            f"the default of {limits.default_output} tokens is above max_output, {limits.max_output}",
            place=f"{place}.default_output",
            remedy="Write at most max_output.",
        )
    if limits.over is Over.REFUSE and limits.allow_truncation:
        raise ConfigError(
            "over: refuse and allow_truncation: true contradict each other",
            place=f"{place}.over",
            remedy="Leave one of them out.",
        )


def check_tokens(tokens: TokensConfig, *, place: str) -> None:
    """Refuse what cannot be counted with: a tokenizer that is not there, or nothing to read it with. `ConfigError`."""
    if tokens.exact not in ("near", "always"):
        raise ConfigError(
            f"{tokens.exact!r} is no way to count", place=f"{place}.exact", remedy="Write near or always."
        )
    if tokens.image_tokens < 0:
        raise ConfigError(
            f"an image of {tokens.image_tokens} tokens cannot be",
            place=f"{place}.image_tokens",
            remedy="Write 0 to leave images out, or what your model spends on one.",
        )
    if len(tokens.marker) > _LONGEST_MARKER or "\n" in tokens.marker:
        raise ConfigError(
            "the marker is no short line",
            place=f"{place}.marker",
            remedy=f"Write one line of at most {_LONGEST_MARKER} characters, or an empty one for no marker.",
        )
    for path, limits in tokens.routes.items():
        if path != ANY and not path.startswith("/"):
            raise ConfigError(
                f"{path!r} is no path",
                place=f"{place}.routes",
                remedy='Write a path such as /v1/chat/completions, or "*" for all of them.',
            )
        check_limits(limits, place=f"{place}.routes.{path}")
    if tokens.tokenizers and importlib.util.find_spec("tokenizers") is None:
        raise ConfigError(
            "counting with a model's own tokenizer needs the package tokenizers, which is not installed",
            place=f"{place}.tokenizers",
            remedy="Run `pip install 'tailrace[tokenizers]'`, or leave the key out: counts are then estimated.",
        )
    for model, path in tokens.tokenizers.items():
        if not tokenizer_file(path).is_file():
            raise ConfigError(
                f"there is no tokenizer at {path}",
                place=f"{place}.tokenizers.{model}",
                remedy="Write the path of a tokenizer.json, or of the folder of a model that has one.",
            )


def tokenizer_file(path: str) -> Path:
    """The file itself, where a folder was given."""
    given = Path(path).expanduser()
    return given / "tokenizer.json" if given.is_dir() else given
