"""Token limits at work: every request's prompt is counted here, and made to fit, before a lane sees it.

Short prompts are done at once. Long ones go to one thread, so that the streams of others go on meanwhile: cutting
100,000 tokens takes 25 ms of Python, counting them with a tokenizer 80 ms. One thread, because more would only contend
for the interpreter; and a bounded line before it, because what waits there holds its body.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace.gateway.lane_facts import lane_facts
from tailrace.gateway.lanes import LaneDesk
from tailrace.gateway.refusal import Refusal
from tailrace.gateway.shaper import ESTIMATE, Shaped, Shaper
from tailrace.gateway.tokenizer import Tokenizers
from tailrace.gateway.verdict import Phase
from tailrace.govern.token_estimate import TokenEstimates
from tailrace.govern.token_limits import OutputCaps
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord

if TYPE_CHECKING:
    from tailrace.gateway.config import Config
    from tailrace.gateway.exchange import GatewayExchange
    from tailrace.gateway.in_flight import InFlight
    from tailrace.gateway.work import Work

log = logging.getLogger(__name__)

INLINE_CUT: Final = 64 * 1024
"""Bytes of a body up to which its prompt is cut on the event loop: 6 ms at most."""
INLINE_COUNT: Final = 8 * 1024
"""The same for counting with a tokenizer: 2 ms."""
MOST_WAITING: Final = 64
"""Long prompts that may wait for the thread: at 100,000 tokens each, two seconds of work."""


class Shaping:
    """Counts prompts, learns how, and holds the limits of lanes and routes."""

    def __init__(self, lanes: LaneDesk) -> None:
        self._lanes = lanes
        self.estimates = TokenEstimates()
        """What the engines' own counts have taught; outlives every change of the configuration."""
        self.caps = OutputCaps()
        """Holds lanes tighter than configured, for whoever degrades service under load."""
        self._tokenizers = Tokenizers()
        self._shaper: Shaper
        self._thread: ThreadPoolExecutor | None = None
        self.waiting = 0
        """Long prompts with the thread, or in line for it."""

    def apply(self, config: Config) -> None:
        """Limits from now on. ConfigError for a tokenizer that cannot be read."""
        self._tokenizers.apply(config.tokens.tokenizers)
        bounds = [
            bound
            for lane in config.lanes
            for bound in (lane.match.min_prompt_tokens, lane.match.max_prompt_tokens)
            if bound is not None
        ]
        self._shaper = Shaper(
            config.tokens,
            {lane.name: lane.tokens for lane in config.lanes},
            bounds,
            tokenizers=self._tokenizers,
            estimates=self.estimates,
            caps=self.caps,
        )

    def close(self) -> None:
        """Nobody waits for it any more."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    # -- a request

    def shape(self, exchange: GatewayExchange, body: bytes) -> bytes | None:
        """The body as it goes on; `None` where it does not, or later, by `exchange.shaped`."""
        work = exchange.work
        if exchange.upload is not None or work.prompt_tokens is None:
            return body  # audio and the like
        tokens = self._shaper.estimate(work)
        if tokens is not None and tokens != work.prompt_tokens:
            exchange.work = work = msgspec.structs.replace(work, prompt_tokens=tokens)
            exchange.ledger.prompt_tokens = tokens
        if self._shaper.idle:
            return body
        endpoint, lane_of = exchange.route.endpoint, partial(self._lane_of, exchange, work)
        lane = lane_of(work.prompt_tokens or 0)
        if self._shaper.slow(endpoint, len(body), work, lane, inline_count=INLINE_COUNT, inline_cut=INLINE_CUT):
            self._later(exchange, partial(self._shaper.shape, endpoint, body, work, lane_of))
            return None
        return self._take(exchange, self._shaper.shape(endpoint, body, work, lane_of))

    def _lane_of(self, exchange: GatewayExchange, work: Work, tokens: int) -> str:
        """Reads the lanes' matches and changes nothing: safe in a thread."""
        if tokens != work.prompt_tokens:
            work = msgspec.structs.replace(work, prompt_tokens=tokens)
        facts = lane_facts(
            exchange.ledger,
            work,
            exchange.head.named,
            stream=work.stream,
            deadline_at=None,
            callers=exchange.gateway.callers,
        )
        return self._lanes.lane_of(facts)

    def _later(self, exchange: GatewayExchange, job: partial[Shaped]) -> None:
        if self.waiting >= MOST_WAITING:
            text = f"{self.waiting} long prompts are being counted or shortened; try again in a moment"
            refusal = Refusal(status=429, message=text, reason=Reason.TOKEN_BACKLOG, stage="ingress", retry_after_s=1)
            exchange.refuse(refusal, monotonic_ns())
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="shaping")
        self.waiting += 1
        exchange.next_check = exchange.clock.total_at()

        def unless_over() -> Shaped | None:
            return None if exchange.phase is Phase.DONE else job()

        future = asyncio.get_running_loop().run_in_executor(self._thread, unless_over)
        future.add_done_callback(partial(self._came, exchange))

    def _came(self, exchange: GatewayExchange, future: asyncio.Future[Shaped | None]) -> None:
        self.waiting -= 1
        if future.cancelled() or exchange.phase is not Phase.UPLOAD:
            return  # its client left, or its time was over
        error = future.exception()
        if error is not None:
            log.error("request %s could not be shaped", exchange.ledger.request_id, exc_info=error)
            exchange.broken(monotonic_ns())
            return
        shaped = future.result()
        body = None if shaped is None else self._take(exchange, shaped)
        if body is not None:
            exchange.shaped(body)

    def _take(self, exchange: GatewayExchange, shaped: Shaped) -> bytes | None:
        """Enter what became of it in the request's account."""
        ledger = exchange.ledger
        ledger.prompt_tokens, ledger.prompt_tokens_source = shaped.work.prompt_tokens, shaped.source
        if shaped.refusal is not None:
            exchange.lane = ledger.lane = shaped.lane
            exchange.refuse(shaped.refusal, monotonic_ns())
            return None
        exchange.work = shaped.work
        ledger.capped_to = shaped.capped_to
        ledger.truncated_from = shaped.truncated_from
        # It stays in the lane whose limits were applied, whatever lane its new size would be in.
        ledger.lane = shaped.lane
        return shaped.body

    # -- learning and telling

    def learn(self, exchange: InFlight | None, record: RequestRecord) -> None:
        """A request has ended, and its engine may have counted its prompt."""
        if (
            exchange is None
            or record.prompt_tokens_source != "usage"
            or record.outcome is not OutcomeKind.COMPLETED
            or not record.prompt_tokens
            or not exchange.work.size.text
        ):
            return
        work = exchange.work
        self.estimates.learn(work.model, work.size, record.prompt_tokens)
        ledger = exchange.ledger
        known = self._tokenizers.of(work.model)
        if known is not None and ledger.prompt_tokens_source == "tokenizer" and ledger.prompt_tokens:
            self._learn_template(known[0], work, ledger.prompt_tokens, record.prompt_tokens)

    def _learn_template(self, name: str, work: Work, ours: int, counted: int) -> None:
        """What the chat template adds to a tokenizer's count of the texts."""
        rates = self.estimates.of_tokenizer(name)
        size = work.size
        a, b = rates.rates[:2]
        text = round(ours - (a + b * size.messages if size.messages else 0.0))
        rates.learn(msgspec.structs.replace(size, narrow=max(text, 0), wide=0), counted)

    def view(self) -> dict[str, Any]:
        """For the admin port."""
        return {"models": self.estimates.view(), "held": dict(self.caps.view()), "in_thread": self.waiting}


__all__ = ["ESTIMATE", "INLINE_COUNT", "INLINE_CUT", "Shaping"]
