"""What becomes of one request's prompt and of what it asks for: counted, refused, shortened, capped.

No clock, socket or loop: it runs on the event loop for short prompts and in a thread for long ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from tailrace.gateway.output_fields import HAS_OUTPUT, asked_output, unambiguous, with_output
from tailrace.gateway.prompt_text import CAN_CUT, CHATS, Prompt, open_prompt
from tailrace.gateway.refusal import Refusal
from tailrace.gateway.token_keys import TokenLimitsConfig, TokensConfig, resolve
from tailrace.gateway.tokenizer import Tokenizer, Tokenizers
from tailrace.gateway.work import BodyError, Work, plain_estimate, read_work
from tailrace.govern.text_cut import Count
from tailrace.govern.text_size import TextSize, measure
from tailrace.govern.token_estimate import NO_ERROR, CountError, TokenEstimates, TokenRates
from tailrace.govern.token_limits import UNLIMITED, OutputCaps, TokenLimits, cap_output
from tailrace.govern.truncation import truncate
from tailrace.model.outcome import Reason

ESTIMATE: Final = "estimate"
TOKENIZER: Final = "tokenizer"
_TRIES: Final = 4
_MOST_MARGIN: Final = 0.25
"""Of an estimate that nothing has been compared with yet, or a bad one."""
_MOST_TEXT: Final = 4 * 1024 * 1024
_MOST_MESSAGES: Final = 20_000
"""Prompts above these are refused, not shortened: half a second and more of the one thread, for an answer to a fraction
of what was asked."""
_NEVER_SEEN: Final = TokenRates()
_PARAM: Final = {"/v1/chat/completions": "messages", "/v1/messages": "messages", "/v1/completions": "prompt"}

LaneOf = Callable[[int], str]
"""Tokens of the prompt -> the lane that the request is in."""


class Shaped(msgspec.Struct, kw_only=True):
    """A request as it goes on, or why it does not."""

    body: bytes
    work: Work
    lane: str
    source: str = ESTIMATE
    """Where `work.prompt_tokens` is from."""
    truncated_from: int | None = None
    capped_to: int | None = None
    refusal: Refusal | None = None


class Shaper:
    """The limits of one configuration, and the counters that they are held against."""

    def __init__(
        self,
        config: TokensConfig,
        lanes: Mapping[str, TokenLimitsConfig | None],
        bounds: Sequence[int],
        *,
        tokenizers: Tokenizers,
        estimates: TokenEstimates,
        caps: OutputCaps,
    ) -> None:
        """`lanes`: name -> its limits; `bounds`: prompt sizes at which a request changes lanes."""
        self._config = config
        self._lanes = dict(lanes)
        self._bounds = sorted(bounds)
        self._tokenizers = tokenizers
        self._estimates = estimates
        self._caps = caps
        self._known: dict[tuple[str, str, int], TokenLimits] = {}
        self._known_at = caps.changes
        self._always = config.exact == "always"
        limits_set = bool(config.routes) or any(limits is not None for limits in lanes.values())
        self._counts_only = not (limits_set or tokenizers)

    @property
    def idle(self) -> bool:
        """Whether no request can be touched, and none counted but by the estimate."""
        return self._counts_only and self._caps.idle

    def limits(self, lane: str, endpoint: str) -> TokenLimits:
        """What holds for a lane on a path now."""
        known_at = self._caps.changes
        if self._known_at != known_at:
            self._known.clear()
            self._known_at = known_at
        # The number of the change is a part of the key: the caps may change while a thread resolves them here.
        found = self._known.get((lane, endpoint, known_at))
        if found is None:
            found = resolve(self._lanes.get(lane), self._config, endpoint, chat=endpoint in CHATS)
            found = self._caps.applied(lane, found, can_cut=endpoint in CAN_CUT)
            self._known[lane, endpoint, known_at] = found = UNLIMITED if found.bounds_nothing else found
        return found

    def estimate(self, work: Work) -> int | None:
        """The calibrated count of a prompt; `None` where the plain one stands."""
        size = work.size
        tokens = self._estimates.estimate(work.model, size) if size.text else None
        if not size.unseen or not self._config.image_tokens:
            return tokens
        return self._config.image_tokens * size.unseen + (plain_estimate(size) if tokens is None else tokens)

    def slow(self, endpoint: str, size: int, work: Work, lane: str, *, inline_count: int, inline_cut: int) -> bool:
        """Whether `shape` would hold the event loop for too long.

        `size` is the whole body's: ten thousand parts of one letter are as much work as a long text.
        """
        if size <= min(inline_count, inline_cut):
            return False
        limits = self.limits(lane, endpoint)
        if size > inline_count and self._tokenizers.of(work.model) and self._close(work, limits):
            return True
        return size > inline_cut and limits.cut_to(work.prompt_tokens or 0) is not None

    def shape(self, endpoint: str, body: bytes, work: Work, lane_of: LaneOf) -> Shaped:
        """What the limits make of a request. `work.prompt_tokens` is the estimate."""
        source, prompt = ESTIMATE, None
        tokens = work.prompt_tokens or 0
        lane = lane_of(tokens)
        limits = self.limits(lane, endpoint)
        ruler: _Ruler = _Estimate(self._estimates.of(work.model), self._config.image_tokens)
        known = self._tokenizers.of(work.model)
        if known is not None and self._close(work, limits):
            prompt = open_prompt(endpoint, body)
            if prompt is not None:
                source, ruler = TOKENIZER, _Exact(known, self._estimates, self._config.image_tokens)
                tokens = ruler.whole(body, endpoint, prompt) or tokens
                lane = lane_of(tokens)
                limits = self.limits(lane, endpoint)
        out = Shaped(body=body, work=work, lane=lane, source=source)
        if limits.refuses(tokens):
            out.refusal = self._too_long(endpoint, work, tokens, limits, lane, source)
            return out
        to = limits.cut_to(tokens)
        if to is not None:
            cut = self._cut(endpoint, body, prompt, work.size, to, ruler)
            if cut is not None:
                out.truncated_from = tokens
                out.body, tokens = cut
            elif limits.max_prompt is not None and tokens > limits.max_prompt:
                out.refusal = self._too_long(endpoint, work, tokens, limits, lane, source, cut=True)
                return out
        self._bound_output(endpoint, out, limits)
        asked = work.max_tokens if out.capped_to is None else out.capped_to
        if tokens != work.prompt_tokens or asked != work.max_tokens:
            out.work = msgspec.structs.replace(work, prompt_tokens=tokens, max_tokens=asked)
        if out.truncated_from is not None:
            # The new size teaches the estimate, once the engine has counted it.
            out.work = msgspec.structs.replace(out.work, size=_size_of(out.body) or work.size)
        return out

    def _close(self, work: Work, limits: TokenLimits) -> bool:
        """Whether the estimate is too near to something that depends on the count, or about to be cut by it."""
        tokens = work.prompt_tokens or 0
        if self._always:
            return bool(work.size.text)
        rates = self._estimates.of(work.model) or _NEVER_SEEN
        low, high = tokens * (1 - rates.margin), tokens * (1 + rates.margin)
        if any(low <= bound <= high for bound in self._bounds):
            return True
        if limits.max_prompt is not None and limits.refuses(tokens):
            return low <= limits.max_prompt
        least = min((bound for bound in (limits.max_prompt, limits.shrink_to) if bound is not None), default=None)
        return least is not None and high >= least

    def _cut(
        self, endpoint: str, body: bytes, prompt: Prompt | None, size: TextSize, to: int, ruler: _Ruler
    ) -> tuple[bytes, int] | None:
        """(body, its count) within `to` tokens by the ruler that found it too long; `None` where that cannot be."""
        if endpoint not in CAN_CUT or size.text > _MOST_TEXT or size.messages > _MOST_MESSAGES:
            return None
        over = 0
        for _ in range(_TRIES):
            prompt = open_prompt(endpoint, body) if prompt is None else prompt
            if prompt is None or prompt.insists:
                return None
            budget = (to - ruler.beside(prompt, size)) / (1 + ruler.margin) - over
            kept = truncate(
                prompt.turns, budget, ruler.count, a_message=ruler.a_message, marker=self._config.marker
            ) if budget > 0 else None  # fmt: skip
            if kept is None:
                return None
            out = prompt.rewritten(kept)
            tokens = ruler.whole(out, endpoint, None)
            if tokens is None:
                return None
            if tokens <= to:
                return out, tokens
            over += tokens - to
            prompt = None  # its texts have been replaced
        return None

    def _bound_output(self, endpoint: str, out: Shaped, limits: TokenLimits) -> None:
        work = out.work
        if endpoint not in HAS_OUTPUT or (limits.max_output is None and limits.default_output is None):
            return
        asked = work.max_tokens
        if limits.max_output is not None:
            # A default binds nobody, so what was read is enough; a limit holds however the engine reads the body.
            out.body = unambiguous(endpoint, out.body)
            asked = asked_output(endpoint, out.body)
        cap = cap_output(limits, asked, work.completions)
        if cap is None:
            return
        body = with_output(endpoint, out.body, cap.each)
        if body is not None:
            out.body, out.capped_to = body, cap.each

    def _too_long(
        self, endpoint: str, work: Work, tokens: int, limits: TokenLimits, lane: str, source: str, *, cut: bool = False
    ) -> Refusal:
        if source == TOKENIZER:
            known = self._tokenizers.of(work.model)
            rates: TokenRates | None = None if known is None else self._estimates.of_tokenizer(known[0])
        else:
            rates = self._estimates.of(work.model)
        error: CountError = NO_ERROR if rates is None else rates.error
        counted = "" if source == TOKENIZER else "about "
        unseen = 0 if self._config.image_tokens else work.size.unseen
        also = f" Images, audio or files in it ({unseen}) are not counted." if unseen else ""
        why = ", and it cannot be shortened" if cut else ""
        facts: dict[str, Any] = {
            "prompt_tokens": tokens,
            "max_prompt_tokens": limits.max_prompt,
            "count_source": source,
            "count_error_p95": error.p95,
            "counted_requests": error.n,
        }
        return Refusal(
            status=400,
            message=f"the prompt has {counted}{tokens} tokens ({source}, {error}) and the limit of lane {lane!r} is "
            f"{limits.max_prompt}{why}. Send a shorter one.{also}",
            reason=Reason.INPUT_TOO_LONG,
            stage="ingress",
            lane=lane,
            code="context_length_exceeded",
            param=_PARAM.get(endpoint, "input"),
            facts=facts,
        )


class _Ruler(ABC):
    """One way to count: pieces of text, and a whole body."""

    a_message = 0.0
    margin = 0.0
    """By what share the engine may well count more than this: a prompt is cut that much shorter than its limit."""
    count: Count

    @abstractmethod
    def beside(self, prompt: Prompt, size: TextSize) -> float:
        """Tokens of a prompt that no cutting changes: the template's own, tools, pictures."""

    @abstractmethod
    def whole(self, body: bytes, endpoint: str, prompt: Prompt | None) -> int | None:
        """The count of a body; `None` where it cannot be read."""


class _Estimate(_Ruler):
    def __init__(self, rates: TokenRates | None, image_tokens: int) -> None:
        self._known = rates
        self._image_tokens = image_tokens
        known = rates or _NEVER_SEEN
        self._a, self.a_message, self._narrow, self._wide = known.rates
        self.margin = min(known.margin, _MOST_MARGIN)

    def count(self, texts: Sequence[str]) -> list[float]:
        narrow, wide = self._narrow, self._wide
        return [narrow * n + wide * w for n, w in map(measure, texts)]

    def beside(self, prompt: Prompt, size: TextSize) -> float:
        # A token for rounding up.
        return self._a + sum(self.count(prompt.fixed)) + self._image_tokens * size.unseen + 1

    def whole(self, body: bytes, endpoint: str, prompt: Prompt | None) -> int | None:  # noqa: ARG002
        size = _size_of(body)
        if size is None:
            return None
        tokens = plain_estimate(size) if self._known is None else max(1, round(self._known.tokens(size)))
        return tokens + self._image_tokens * size.unseen


class _Exact(_Ruler):
    def __init__(self, known: tuple[str, Tokenizer], estimates: TokenEstimates, image_tokens: int) -> None:
        name, tokenizer = known
        self.count = tokenizer.count
        self._image_tokens = image_tokens
        self._a, self.a_message = estimates.of_tokenizer(name).rates[:2]

    def beside(self, prompt: Prompt, size: TextSize) -> float:
        return self._a + sum(self.count(prompt.fixed)) + self._image_tokens * size.unseen + 1

    def whole(self, body: bytes, endpoint: str, prompt: Prompt | None) -> int | None:
        prompt = open_prompt(endpoint, body) if prompt is None else prompt
        size = _size_of(body) if self._image_tokens else None
        if prompt is None:
            return None
        template = self._a + self.a_message * prompt.messages if prompt.messages else 0.0
        unseen = 0 if size is None else size.unseen
        return round(sum(self.count(prompt.texts())) + template) + self._image_tokens * unseen


def _size_of(body: bytes) -> TextSize | None:
    try:
        return read_work(body).size
    except BodyError:
        return None
