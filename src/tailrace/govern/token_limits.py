"""How many tokens a request may bring and ask for, and how both are tightened while the engine is overloaded."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec


class Over(StrEnum):
    """What happens to a prompt that is over its limit."""

    REFUSE = "refuse"
    """400 in the API's own shape, naming count and limit."""
    TRUNCATE = "truncate"
    """What matters least is left out, visibly."""


class TokenLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one lane on one route; `None` does not bound."""

    max_prompt: int | None = None
    over: Over = Over.REFUSE
    max_output: int | None = None
    """Of all completions of a request together: `n` or `best_of` of them share it."""
    default_output: int | None = None
    """What is asked of the engine where the client says nothing."""
    shrink_to: int | None = None
    """Under load: prompts within `max_prompt` are shortened to this too, where they can be; one that cannot goes on
    as it is."""

    @property
    def bounds_nothing(self) -> bool:
        """Whether no request can be touched."""
        return not (self.bounds_prompts or self.max_output or self.default_output)

    @property
    def bounds_prompts(self) -> bool:
        """Whether the size of a prompt matters."""
        return self.max_prompt is not None or self.shrink_to is not None

    def cut_to(self, tokens: int) -> int | None:
        """What a prompt of this size is to be shortened to; `None` where it stays as it is or is refused."""
        if self.refuses(tokens):
            return None
        bounds = [bound for bound in (self.max_prompt, self.shrink_to) if bound is not None]
        least = min(bounds, default=tokens)
        return least if tokens > least else None

    def refuses(self, tokens: int) -> bool:
        """Whether a prompt of this size is turned away."""
        return self.max_prompt is not None and tokens > self.max_prompt and self.over is Over.REFUSE


UNLIMITED: Final = TokenLimits()


class OutputCap(msgspec.Struct, frozen=True):
    """What a request's output is bounded to."""

    each: int
    """Tokens of each completion."""
    asked: int | None
    """What the client asked for; `None` where it left it open."""


def cap_output(limits: TokenLimits, asked: int | None, copies: int) -> OutputCap | None:
    """The bound to write into a request, or `None` where what the client asked for may stay.

    `copies` is how many completions the engine works on (`n`, `best_of`, beams): the hard limit is of all of them
    together, because that is what they cost, so each gets its part, and at least one token.
    """
    limit = limits.max_output
    each = None if limit is None else max(1, limit // max(copies, 1))
    if asked is not None:
        return None if each is None or asked <= each else OutputCap(each, asked)
    wanted = limits.default_output
    if wanted is None:
        return None if each is None else OutputCap(each, None)
    return OutputCap(wanted if each is None else min(wanted, each), None)


class Squeeze(msgspec.Struct, frozen=True, kw_only=True):
    """How much tighter a lane is held for now."""

    output_factor: float = 1.0
    """Share of `max_output`, and of `default_output`, that is left."""
    output_cap: int | None = None
    """Tokens of output, whatever the configuration allows."""
    prompt_to: int | None = None
    """Prompts are shortened to this where they can be; one that cannot is left to the lane's own limit."""

    @property
    def idle(self) -> bool:
        """Whether it changes nothing."""
        return self == _LOOSE


_LOOSE: Final = Squeeze()
ALL_LANES: Final = "*"


class OutputCaps:
    """Lane -> `Squeeze`, set and taken back at run time. Requests that are admitted keep what they were given.

    Whoever degrades service on purpose sets this; the configuration's own limits stay underneath, and are never
    loosened by it.
    """

    __slots__ = ("_lanes", "changes")

    def __init__(self) -> None:
        self._lanes: dict[str, Squeeze] = {}
        self.changes = 0
        """Counts changes, so that whoever keeps resolved limits knows when they are old. Last of all that a change
        does: limits are resolved in a thread too."""

    def set(
        self,
        lane: str = ALL_LANES,
        *,
        output_factor: float = 1.0,
        output_cap: int | None = None,
        prompt_to: int | None = None,
    ) -> None:
        """Hold a lane (or all of them) this much tighter from now on; what was set before is forgotten.

        ValueError for a factor outside 0 (excluded) to 1, or a cap below 1.
        """
        if not 0 < output_factor <= 1:
            raise ValueError(f"a factor of {output_factor} does not lower a cap")
        if min(output_cap or 1, prompt_to or 1) < 1 or 0 in (output_cap, prompt_to):
            raise ValueError(f"a cap of {output_cap} or {prompt_to} tokens leaves nothing")
        squeeze = Squeeze(output_factor=output_factor, output_cap=output_cap, prompt_to=prompt_to)
        if squeeze.idle:
            self._lanes.pop(lane, None)
        else:
            self._lanes[lane] = squeeze
        self.changes += 1

    def lift(self, lane: str | None = None) -> None:
        """Back to what the configuration says: for one lane (or the one entry of all), or for everybody."""
        if lane is None:
            self._lanes.clear()
        else:
            self._lanes.pop(lane, None)
        self.changes += 1

    @property
    def idle(self) -> bool:
        """Whether nobody is held tighter."""
        return not self._lanes

    def applied(self, lane: str, limits: TokenLimits, *, can_cut: bool) -> TokenLimits:
        """The limits in force for `lane`. `can_cut`: a prompt of this kind can be shortened."""
        squeeze = self._lanes.get(lane) or self._lanes.get(ALL_LANES)
        if squeeze is None:
            return limits
        top, default = limits.max_output, limits.default_output
        factor = squeeze.output_factor
        if factor < 1:
            top = None if top is None else max(1, int(top * factor))
            default = None if default is None else max(1, int(default * factor))
        if squeeze.output_cap is not None:
            top = squeeze.output_cap if top is None else min(top, squeeze.output_cap)
        return TokenLimits(
            max_prompt=limits.max_prompt,
            over=limits.over,
            max_output=top,
            default_output=default,
            shrink_to=squeeze.prompt_to if can_cut else None,
        )

    def view(self) -> Mapping[str, Any]:
        """Lane -> what is set."""
        return {lane: msgspec.to_builtins(squeeze) for lane, squeeze in self._lanes.items()}
