"""Plans: the sequence of requests that a workload and a seed stand for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec
import numpy as np

from tailrace.model.thresholds import MS
from tailrace.workload.arrivals import ArrivalKind, Arrivals, senders
from tailrace.workload.clients import drawers
from tailrace.workload.conversations import Conversation
from tailrace.workload.leave import Leave, leave_at
from tailrace.workload.length import Fixed, Length
from tailrace.workload.mix import TrafficClass, draws
from tailrace.workload.prefix import Piece, Prefixes, fit
from tailrace.workload.session import Turn, draw_session
from tailrace.workload.trace import TraceRow, looped
from tailrace.workload.traits import PLAIN, Traits

TRACE_CLASS = "trace"
CONVERSATION_CLASS = "conversation"
CHARS_PER_ANSWER_TOKEN = 4
"""Of recorded answers, whose tokens nobody counted."""
_UNRECORDED_ANSWER = 128
"""Tokens of the answer to a message whose recorded answer is missing."""
_MOST_FITTED = 20_000
"""Requests of which the reuse of prefixes is worked out beforehand: 0.1 s; first uses are long past by then."""


class PlannedRequest(NamedTuple):
    """Request `number` (from 0). `at_ns` is its intended send time from the start, `None` in a closed loop.

    A session is planned as its first turn, with the others in `later`.
    """

    number: int
    at_ns: int | None
    name: str
    """Its class."""
    prompt_tokens: int
    """Of a request for embeddings, of each of its inputs."""
    output_tokens: int
    turn: int | None = None
    """Its place in its session, from 0; `None` for a request that belongs to none."""
    later: tuple[Turn, ...] = ()
    prefix: tuple[Piece, ...] = ()
    """What its prompt begins with, in order."""
    leave: Leave | None = None
    """When its client leaves before the answer is whole."""
    audio_ms: int | None = None
    text: str | None = None
    """Its message, where that was recorded rather than drawn."""
    system: str = ""
    client: int | None = None
    """Which of the arrivals' clients sends it; `None` where there are no clients."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Arrivals with the mix, the recorded rows or the recorded conversations that they carry."""

    arrivals: Arrivals
    mix: list[TrafficClass] = []
    trace: list[TraceRow] = []
    """Rows of a recorded trace. With `trace` arrivals they are played at their own times; otherwise their lengths
    are taken in order (and again from the beginning) at the times of the arrivals."""
    trace_span_ns: int | None = None
    """Of a trace at its own times: it begins again after so long; `None`: it is played once."""
    trace_notes: list[str] = []
    """What to know of the trace: rows left out, lengths estimated, rounds."""
    conversations: list[Conversation] = []
    """Taken in order, and again from the beginning."""
    traits: Traits = PLAIN
    """Of requests from a trace or from conversations; those of a mix have their classes' own."""
    answer: Length | None = None
    """Tokens of the answers in conversations; `None`: as long as the recorded ones."""


class Generators(NamedTuple):
    """Independent sources of randomness, so that a change of one kind of draw leaves the others alone."""

    arrivals: np.random.Generator
    lengths: np.random.Generator
    sessions: np.random.Generator
    prefixes: np.random.Generator
    leaves: np.random.Generator
    audio: np.random.Generator


def generators(seed: int, phase: int = 0) -> Generators:
    """The generators of one phase (0 the measured one, 1 the warm-up) of a run with this seed."""
    return Generators(*(np.random.default_rng(one) for one in np.random.SeedSequence([seed, phase]).spawn(6)))


def plan(workload: Workload, rng: Generators) -> Iterator[PlannedRequest]:
    """The requests in order, a session as one; endless, but for a trace at its own times and a rate that ends at 0."""
    arrivals, rows = workload.arrivals, workload.trace
    adorn = _Adorner(workload, rng)
    if arrivals.kind is ArrivalKind.TRACE:
        for i, row in enumerate(_played(rows, workload.trace_span_ns)):
            request = PlannedRequest(i, row.at_ns, TRACE_CLASS, row.prompt_tokens, row.output_tokens)
            yield adorn.row(request, row)._replace(name=row.name or TRACE_CLASS)
        return
    times = senders(arrivals, rng.arrivals) if arrivals.open_loop else itertools.repeat((None, 0))
    recorded = bool(rows or workload.conversations)
    clients = arrivals.clients
    own = (
        None if clients is None or clients.own_mix is None or recorded else drawers(clients, workload.mix, rng.lengths)
    )
    lengths = None if recorded or own is not None else draws(workload.mix, rng.lengths)
    for number, (at, sender) in enumerate(times):
        client = None if clients is None else sender
        source = own[sender] if own is not None else lengths
        if source is not None:
            drawn = next(source)
            request = PlannedRequest(number, at, drawn.name, drawn.prompt_tokens, drawn.output_tokens, client=client)
            yield request if drawn.name in adorn.plain else adorn.drawn(request)
        elif rows:
            row = rows[number % len(rows)]
            request = PlannedRequest(number, at, TRACE_CLASS, row.prompt_tokens, row.output_tokens, client=client)
            yield adorn.row(request, row)._replace(name=row.name or TRACE_CLASS)
        else:
            yield adorn.conversation(number, at, workload.conversations[number % len(workload.conversations)])


def _played(rows: list[TraceRow], span_ns: int | None) -> Iterator[TraceRow]:
    """The rows at their own times, round after round where a round has a length."""
    for round_ in itertools.count() if span_ns is not None else (0,):
        yield from looped(rows, round_, span_ns or 0)


class _Adorner:
    """Gives requests what their class's traits ask for."""

    def __init__(self, workload: Workload, rng: Generators) -> None:
        self.classes = {one.name: one for one in workload.mix}
        self.plain = {one.name for one in workload.mix if one.traits.plain}
        self.traits = workload.traits
        self.answer = workload.answer
        self.rng = rng
        self.edges = {
            name: traits.prefixes.edges()
            for name, traits in (
                *((one.name, one.traits) for one in workload.mix),
                (TRACE_CLASS, workload.traits),
                (CONVERSATION_CLASS, workload.traits),
            )
            if traits.prefixes is not None
        }

    def drawn(self, request: PlannedRequest) -> PlannedRequest:
        known = self.classes[request.name]
        traits = known.traits
        later: tuple[Turn, ...] = ()
        turn = None
        if traits.sessions is not None:
            turn = 0
            found = draw_session(
                traits.sessions,
                prompt=known.prompt,
                output=known.output,
                correlation=known.correlation,
                rng=self.rng.sessions,
            )
            later = tuple(
                Turn(think * MS, prompt, output, None, self.leave(traits))
                for think, prompt, output in zip(*found, strict=True)
            )
        return self.common(request._replace(turn=turn, later=later), traits)

    def row(self, request: PlannedRequest, row: TraceRow) -> PlannedRequest:
        out = self.common(request, self.traits)
        if not row.blocks:
            return out
        left = row.prompt_tokens
        pieces: list[Piece] = []
        for block in row.blocks:
            if left <= 0:
                break
            pieces.append(Piece(f"block {block}", min(left, row.block_tokens)))
            left -= row.block_tokens
        return out._replace(prefix=tuple(pieces))

    def conversation(self, number: int, at: int | None, recorded: Conversation) -> PlannedRequest:
        traits = self.traits
        sessions = traits.sessions
        think = Fixed(0) if sessions is None else sessions.think
        turns = recorded.turns
        rng = self.rng.sessions
        pauses = think.at(rng.standard_normal(len(turns) - 1)).tolist()
        deviates = rng.standard_normal(len(turns))
        outputs = (
            [round(one.answer_chars / CHARS_PER_ANSWER_TOKEN) or _UNRECORDED_ANSWER for one in turns]
            if self.answer is None
            else np.maximum(self.answer.at(deviates), 1).tolist()
        )
        first, *others = turns
        request = PlannedRequest(
            number,
            at,
            CONVERSATION_CLASS,
            _tokens(first.text + recorded.system),
            outputs[0],
            turn=0,
            text=first.text,
            system=recorded.system,
            later=tuple(
                Turn(pause * MS, _tokens(one.text), output, one.text, self.leave(traits))
                for pause, one, output in zip(pauses, others, outputs[1:], strict=True)
            ),
        )
        return self.common(request, msgspec.structs.replace(traits, prefixes=None))

    def common(self, request: PlannedRequest, traits: Traits) -> PlannedRequest:
        if traits.plain:
            return request
        pieces: tuple[Piece, ...] = ()
        if traits.prefixes is not None:
            entry = int(np.searchsorted(self.edges[request.name], self.rng.prefixes.random(), side="right"))
            pieces = _pieces(request, traits.prefixes, min(entry, traits.prefixes.pool - 1))
        audio = None
        if traits.audio is not None:
            audio = max(1, int(traits.audio.at(self.rng.audio.standard_normal(1))[0]))
        return request._replace(prefix=pieces, leave=self.leave(traits), audio_ms=audio)

    def leave(self, traits: Traits) -> Leave | None:
        return leave_at(traits.leaves, self.rng.leaves.random()) if traits.leaves else None


def _tokens(text: str) -> int:
    return max(1, round(len(text) / CHARS_PER_ANSWER_TOKEN))


def _pieces(request: PlannedRequest, prefixes: Prefixes, entry: int) -> tuple[Piece, ...]:
    length = prefixes.length(request.prompt_tokens)
    return (Piece(f"{request.name}/{entry}", length),) if length else ()


def first(requests: Iterator[PlannedRequest], count: int | None) -> Iterator[PlannedRequest]:
    """The first `count` requests, every turn of a session counted; the last session may lose turns for it."""
    if count is None:
        yield from requests
        return
    for request in requests:
        if count <= 0:
            return
        count -= 1 + len(request.later)
        yield request if count >= 0 else request._replace(later=request.later[:count])


def part(requests: Iterator[PlannedRequest], index: int, count: int) -> Iterator[PlannedRequest]:
    """Every `count`-th request from `index` on: the share of one of several load generators.

    The shares of all of them together are the plan, each request exactly once.
    """
    return islice(requests, index, None, count)


def with_fitted_prefixes(
    workload: Workload, seed: int, *, requests: int | None = None, duration_ns: int | None = None
) -> Workload:
    """The workload with prefixes scaled so that this run finds the share asked for; see `prefix`.

    Where neither a number of requests nor (in an open loop) a time says which requests there will be, first uses are
    not made up for.
    """
    asking = [one for one in workload.mix if one.traits.prefixes is not None and one.traits.prefixes.hit is not None]
    alone = workload.traits.prefixes
    open_loop = workload.arrivals.open_loop
    if not asking and (alone is None or alone.hit is None):
        return workload
    if requests is None and not workload.trace and (duration_ns is None or not open_loop):
        return workload
    prompts: dict[str, list[tuple[int, str]]] = {}
    limit = min(requests or _MOST_FITTED, _MOST_FITTED)
    for request in first(plan(workload, generators(seed)), limit):
        if duration_ns is not None and request.at_ns is not None and request.at_ns >= duration_ns:
            break
        if request.prefix:
            key = request.name if workload.mix else TRACE_CLASS
            prompts.setdefault(key, []).append((request.prompt_tokens, request.prefix[0].key))
    mix = [msgspec.structs.replace(one, traits=_fitted(one.traits, prompts.get(one.name, []))) for one in workload.mix]
    traits = _fitted(workload.traits, prompts.get(TRACE_CLASS, []))
    return msgspec.structs.replace(workload, mix=mix, traits=traits)


def _fitted(traits: Traits, prompts: list[tuple[int, str]]) -> Traits:
    if traits.prefixes is None:
        return traits
    return msgspec.structs.replace(traits, prefixes=fit(traits.prefixes, prompts))
