"""The engine's queue and prefill of requests whose engine reports neither, inferred as their records are made.

Nothing is added to the relay: the meters have every stamp already. What is needed of them is looked at when a batch of
ended requests becomes records, and only while there are requests that nobody splits otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace.gateway.config_sections import InferenceConfig
from tailrace.measure.engine_timings import EngineTimings
from tailrace.measure.inference.budget_votes import WHOLE
from tailrace.measure.inference.handover import SMALL_NS, with_handover
from tailrace.measure.inference.neighbours import Neighbours
from tailrace.measure.inference.scene import Heard, Scene
from tailrace.measure.inference.thrown_out import DENSE, may_have_been, preemptions
from tailrace.measure.inference.waits import Quality, Split, Wait, WaitModel
from tailrace.measure.ledger import RequestLedger
from tailrace.measure.summary import StreamSummary
from tailrace.model.engine_state import EngineState
from tailrace.model.outcome import OutcomeKind
from tailrace.model.stage import SourceKind, source

if TYPE_CHECKING:
    from tailrace.gateway.engine_link import EngineLink
    from tailrace.gateway.in_flight import InFlight
    from tailrace.gateway.record_desk import Ended

_MISSED_STEPS: Final = source(SourceKind.INFERRED, "steps missed beside neighbours")
_UNASKED: Final = 256
"""So many records in a row that the engine splits itself, and its streams are not remembered any more."""
_UNSURE: Final = 1.5
"""Our own estimate of a prompt's tokens may be this much too low."""
_DENSE: Final = 0.8
"""Token events a token from which on a stream marks the engine's steps."""
_DENSE_FROM: Final = 8
_STRANGERS: Final = 2
"""So many scrapes in a row that count more requests than ours, and others use the engine too."""


class WaitInference:
    """One backend's model and its memory; `complete` is asked once a record."""

    def __init__(
        self, settings: InferenceConfig, engine: EngineLink, in_flight: Callable[[], Iterable[InFlight]]
    ) -> None:
        self._engine = engine
        self._watch = engine.watch
        self._in_flight = in_flight
        self._model = WaitModel()
        self._neighbours = Neighbours()
        self._heard: dict[int, Heard] = {}
        self._scene: Scene | None = None
        self._unasked = _UNASKED
        self._dense = True
        self._seen: EngineState | None = None
        self._excess = 0
        self.partial = ""
        """Why our own requests may not be all that the engine has; then only what our streams' tokens mark is used."""
        self.asked = self.shown = 0
        """Waits that nobody else split, and those of them of which a stage was known well enough."""
        self.apply(settings)

    def apply(self, settings: InferenceConfig) -> None:
        """A new configuration."""
        self._enabled = settings.enabled
        self._quality = Quality(share=settings.error_share, floor_ns=int(settings.error_floor))

    # -- a batch of records

    def begin(self, batch: Sequence[Ended]) -> None:
        """These have ended: they are neighbours of one another, and of those in flight."""
        self._scene = None
        self._heard.clear()
        if not self._enabled or not self._remembering():
            return
        heard = self._heard
        neighbours = self._neighbours
        for ended in batch:
            one = self._heard_of(ended)
            if one is not None:
                heard[id(ended.ledger)] = one
                neighbours.add(one)
        state = self._watch.latest
        if state is not self._seen:
            self._seen = state
            if state is not None and state.running is not None:
                self._count_strangers(state, state.running + (state.waiting or 0))
        sent = [one.sent for one in heard.values()]
        sent += [one.ledger.sent for one in self._in_flight() if one.ledger.sent is not None]
        neighbours.forget(min(sent, default=batch[-1].end))

    def complete(self, ledger: RequestLedger, summary: StreamSummary | None, said: EngineTimings) -> EngineTimings:
        """What the engine `said` of one request, and where it said nothing, what can be inferred."""
        if summary is None or ledger.sent is None or not self._enabled:
            return said
        said = self._mend(ledger, summary, said)
        return said if summary.first_token_at is None else self._infer(ledger, summary, said)

    def _mend(self, ledger: RequestLedger, summary: StreamSummary, said: EngineTimings) -> EngineTimings:
        """What engines that report leave out."""
        if summary.first_token_at is not None and said.preemptions is None and self._preempting():
            said = self._with_preemptions(ledger, summary, said)
        told = said.queue_ns is not None and said.prefill_ns is not None
        if told and self._engine.adapter.queue_begins_between_steps:
            said = self._with_handover(ledger, summary, said)
        return said

    def _infer(self, ledger: RequestLedger, summary: StreamSummary, said: EngineTimings) -> EngineTimings:
        spoken = said.queue_ns is not None or said.prefill_ns is not None or said.encode_ns is not None
        if spoken or ledger.passages:
            if self._unasked < _UNASKED:
                self._unasked += 1
                if said.queue_ns is not None and said.prefill_ns is not None:
                    self._learn(ledger, summary, said.queue_ns, said.prefill_ns)
            return said
        if not self._remembering():
            self._begin_anew(summary.ended_at or ledger.sent or 0)
            return said
        self._unasked = 0
        self.asked += 1
        split = self._split(ledger, summary)
        if split is None:
            return said
        timings = split.timings(self._quality, said)
        if timings is not said:
            self.shown += 1
        return timings

    def _with_handover(self, ledger: RequestLedger, summary: StreamSummary, said: EngineTimings) -> EngineTimings:
        """An engine's own queue time, and the end of the step before it."""
        sent, until = ledger.sent, summary.first_token_at
        if until is None and ledger.upstream_end is not None and said.decode_ns is not None:
            until = ledger.upstream_end - said.decode_ns
        if sent is None or until is None:
            return said
        wait_ns = until - sent
        if wait_ns - (said.queue_ns or 0) - (said.prefill_ns or 0) <= SMALL_NS:
            return said
        if sent <= self._neighbours.forgotten_until:
            return said
        return with_handover(said, sent, wait_ns, self._present())

    def _remembering(self) -> bool:
        """Whether neighbours are kept: only while somebody asks for them."""
        return self._unasked < _UNASKED or self._engine.adapter.queue_begins_between_steps or self._preempting()

    def _preempting(self) -> bool:
        """Whether the engine has preempted at all, and does not say whom."""
        state = self._watch.latest
        return self._engine.adapter.preempts_silently and state is not None and bool(state.preemptions_total)

    def _with_preemptions(self, ledger: RequestLedger, summary: StreamSummary, said: EngineTimings) -> EngineTimings:
        heard, p50 = self._heard.get(id(ledger)), summary.chunk_gap_p50_ns
        if heard is None or p50 is None or not may_have_been(summary.chunk_gap_max_ns, p50):
            return said
        if summary.token_events < DENSE * (summary.output_tokens or 0):
            return said
        blocked = ledger.blocked + summary.client_blocked
        found = preemptions(heard, self._present(), gap_p50_ns=p50, blocked=blocked)
        if not found:
            return said
        ledger.fact_sources = {**ledger.fact_sources, "preemptions": _MISSED_STEPS}
        return msgspec.structs.replace(said, preemptions=found)

    def _begin_anew(self, now: int) -> None:
        """The first for long: who was there until now is not known."""
        self._unasked = 0
        self._neighbours.clear()
        self._neighbours.forgotten_until = now

    def _present(self) -> Scene:
        scene = self._scene
        if scene is None:
            scene = self._scene = self._neighbours.scene(self._living())
        return scene

    def _split(self, ledger: RequestLedger, summary: StreamSummary) -> Split | None:
        heard = self._heard.get(id(ledger))
        if heard is None or heard.first is None:
            return None
        if heard.sent <= self._neighbours.forgotten_until or ledger.audio_seconds is not None:
            return None
        return self._model.split(self._wait(heard, ledger, summary), self._present(), partial=self._shared)

    @property
    def _shared(self) -> bool:
        return bool(self.partial) or self._excess >= _STRANGERS

    def _learn(self, ledger: RequestLedger, summary: StreamSummary, queue_ns: int, prefill_ns: int) -> None:
        split = self._split(ledger, summary)
        if split is not None:
            self._model.check(split, queue_ns, prefill_ns)

    def _wait(self, heard: Heard, ledger: RequestLedger, summary: StreamSummary) -> Wait:
        cached = summary.cached_tokens
        if cached is None:
            # An engine whose counter has never moved has no prompt in its cache.
            state = self._watch.latest
            cached = 0 if state is not None and state.prefix_hit_tokens_total == 0 else None
        prompt = summary.prompt_tokens
        if prompt is None and ledger.prompt_tokens is not None:
            prompt, cached = round(ledger.prompt_tokens * _UNSURE), None
        return Wait(heard=heard, prompt_tokens=prompt, cached_tokens=cached, headers=ledger.headers)

    # -- who is there

    def _heard_of(self, ended: Ended) -> Heard | None:
        ledger = ended.ledger
        if ledger.sent is None:
            return None
        meter = ended.exchange.transit.meter if ended.exchange is not None else None
        if meter is None or meter.first_token_ns is None:
            return Heard(ledger.sent, None, ledger.upstream_end or ended.end)
        whole = ended.verdict.outcome is OutcomeKind.COMPLETED and meter.last_token_ns is not None
        tokens = meter.tokens
        if tokens >= _DENSE_FROM:
            self._dense = meter.token_events >= _DENSE * tokens
        return Heard(
            ledger.sent,
            meter.first_token_ns,
            meter.last_token_ns if whole else ended.end,
            meter.event_stamps,
            tokens=_most_tokens(meter.prompt_tokens, ledger.prompt_tokens),
            dense=self._dense,
        )

    def _living(self) -> list[Heard]:
        out = []
        for one in self._in_flight():
            ledger = one.ledger
            if ledger.sent is None:
                continue
            meter = one.transit.meter
            if meter is None or meter.first_token_ns is None:
                out.append(Heard(ledger.sent, None, None))
            else:
                tokens = _most_tokens(meter.prompt_tokens, ledger.prompt_tokens)
                out.append(
                    Heard(ledger.sent, meter.first_token_ns, None, meter.event_stamps, tokens=tokens, dense=self._dense)
                )
        return out

    def _count_strangers(self, state: EngineState, there: int) -> None:
        ours = self._neighbours.scene(self._living()).present(state.at_ns)
        # A request that has just ended here may still be in the engine's last count.
        self._excess = self._excess + 1 if there > ours + max(1, ours // 8) else 0

    # -- views

    def view(self) -> dict[str, Any]:
        """For the admin port."""
        why = self.partial
        if not why and self._excess >= _STRANGERS:
            why = "the engine counts more requests than ours"
        budgets = self._model.votes.plausible()
        cost = self._model.cost
        return {
            "enabled": self._enabled,
            "partial": why,
            "asked": self.asked,
            "shown": self.shown,
            "prefill_samples": len(cost),
            "prefill_error_share": round(cost.error_share, 4) if cost.known else None,
            "tokens_per_step": [budget for budget in budgets if budget != WHOLE],
            "whole_prompts": WHOLE in budgets,
        }


def _most_tokens(said: int | None, estimate: int | None) -> int | None:
    if said is not None:
        return said
    return None if estimate is None else round(estimate * _UNSURE)
