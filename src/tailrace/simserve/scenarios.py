"""What a stream of known truth does, decided before its first byte is sent.

A scenario is a function from an `Ask` to a `Plan`: a list of steps, each with its offset from the moment at which the
request's last body byte arrived, what it is, how many tokens it carries, and its bytes. A plan depends on nothing but
the scenario, the seed and the ask, so the same traffic can be measured twice.

`SCENARIOS` holds the shapes that measuring tools get wrong: several tokens an event, events joined in one write or cut
over two, chunks that carry no token, late usage, reasoning fields, early ends, and failures that hide inside a 200.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import msgspec
import numpy as np

from tailrace.model.thresholds import MS

MODEL_PREFIX: Final = "simulated-"
"""Model names say that nothing is computed here; `simulated-spec` and `spec` both name the scenario `spec`."""


class StepKind(StrEnum):
    """What a step puts on the wire. Only `content` and `reasoning` carry tokens."""

    ROLE = "role"
    EMPTY = "empty"
    PING = "ping"
    CONTENT = "content"
    REASONING = "reasoning"
    FINISH = "finish"
    USAGE = "usage"
    ERROR = "error"
    DONE = "done"
    CUT = "cut"
    """The connection closes without a word."""
    RAW = "raw"
    """Bytes that a test chose; nothing is known about them."""


TOKEN_STEPS: Final = frozenset({StepKind.CONTENT, StepKind.REASONING})


@dataclass(frozen=True, slots=True)
class Ask:
    """What the server read of one request."""

    index: int = 0
    """Number of the request on this server, from 0."""
    model: str = "plain"
    max_tokens: int = 40
    stream: bool = True
    chat: bool = True
    """Chat completions; otherwise plain completions."""
    include_usage: bool = True
    prompt_tokens: int = 3


@dataclass(frozen=True, slots=True)
class Step:
    """One event of a stream."""

    at_ns: int
    kind: StepKind
    tokens: int
    data: bytes
    joined: bool = False
    """Leaves in the same write as the step before it."""
    pause_ns: int = 0
    """Above 0: the bytes leave in two halves with this pause between them; the event is there with the second."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the server does for one request."""

    steps: Sequence[Step] = ()
    status: int = 200
    body: bytes = b""
    """The whole answer, where `status` is not 200 or the answer is not streamed."""
    body_at_ns: int = 0
    said_tokens: int | None = None
    """Completion tokens that a usage object tells, where one is sent."""
    scenario: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """The knobs of the built-in scenarios; `plan` turns them into steps. Times in milliseconds."""

    first_ms: float = 100.0
    first_tail_ms: float = 0.0
    """Mean of an exponential addition to `first_ms`."""
    gap_ms: float = 20.0
    gap_sigma: float = 0.0
    """Gaps are multiplied by a log-normal factor with this sigma."""
    stall_ms: float = 0.0
    stall_share: float = 0.0
    """This share of the gaps is longer by `stall_ms`."""
    tokens: int = 0
    """0: as many as the request allows; otherwise the stream ends after this many, if allowed."""
    packing: tuple[int, ...] = (1,)
    """Tokens an event, cycled."""
    joined: int = 1
    """Events a write."""
    pause_ms: float = 0.0
    eol: str = "\n"
    role_alone_ms: float | None = None
    """The role chunk comes alone at this time instead of with the first token."""
    empty_ms: float | None = None
    """A chunk with `content: ""` comes at this time."""
    ping_every_ms: float = 0.0
    """Comments until the first token."""
    usage: str = "final"
    """`final`, `none`, `every_event` or `with_finish`."""
    usage_late_ms: float = 0.0
    done_late_ms: float = 0.0
    reasoning_tokens: int = 0
    reasoning_field: str = "reasoning_content"
    odd_requests: str = ""
    """What happens to every second request: `reject`, `cut`, `error`, or nothing."""
    break_after: int = 21
    """Tokens sent before `cut` and `error`."""
    note: str = field(default="", compare=False)
    """What a measuring tool must report."""


SCENARIOS: Final[dict[str, Shape]] = {
    "plain": Shape(note="TTFT, gaps and TPOT of an even stream"),
    "fast": Shape(first_ms=20, gap_ms=5, note="the same, four times as fast"),
    "mixed": Shape(
        first_ms=80,
        first_tail_ms=60,
        gap_sigma=0.15,
        stall_ms=180,
        stall_share=0.01,
        note="the p99 gap shows the rare stalls that a mean of each request hides",
    ),
    "spec": Shape(packing=(1, 4, 2, 5, 3), gap_ms=40, note="tokens are not events: TPOT by tokens, gaps by events"),
    "burst_write": Shape(joined=4, note="three of four gaps are 0"),
    "split": Shape(pause_ms=10, note="an event is there when its second half is there"),
    "crlf": Shape(eol="\r\n", note="CRLF line ends are line ends"),
    "role_early": Shape(first_ms=300, role_alone_ms=0, note="a role chunk is no token"),
    "empty_first": Shape(first_ms=300, empty_ms=10, note="an empty chunk is no token and no gap"),
    "pings": Shape(first_ms=300, ping_every_ms=50, note="a comment is no event"),
    "late_usage": Shape(usage_late_ms=500, done_late_ms=100, note="a late usage chunk is not the last token"),
    "late_done": Shape(done_late_ms=500, note="a late [DONE] is not the last token"),
    "no_usage": Shape(usage="none", note="the token count, and that it was counted in chunks"),
    "cont_usage": Shape(usage="every_event", note="running usage is a total, not a sum"),
    "usage_with_finish": Shape(usage="with_finish", note="usage beside a finish reason counts once"),
    "reasoning": Shape(reasoning_tokens=30, note="reasoning is a token; the answer's first text comes later"),
    "reasoning_alt": Shape(reasoning_tokens=30, reasoning_field="reasoning", note="the same under the other name"),
    "early_eos": Shape(tokens=25, note="fewer tokens than asked for"),
    "one_token": Shape(tokens=1, note="no TPOT at all, not 0"),
    "reject": Shape(odd_requests="reject", note="a 429 is a rejection and has no latency"),
    "drop": Shape(odd_requests="cut", note="a cut stream failed, after 21 tokens"),
    "error_event": Shape(odd_requests="error", note="an error inside a 200 failed, whatever [DONE] says"),
}
"""The scenarios by name: each is a row that a measuring tool has to get right."""


MEDLEY: Final = "medley"
"""The model name for all scenarios in turn; `plain+spec` takes turns between these two."""


def scenario_names(model: str) -> list[str]:
    """The scenarios that a model name asks for, to be played in turn; `plain` where it names none."""
    name = model.removeprefix(MODEL_PREFIX)
    if name == MEDLEY:
        return list(SCENARIOS)
    return [part for part in name.split("+") if part in SCENARIOS] or ["plain"]


def plan(ask: Ask, *, seed: int = 0) -> Plan:
    """The plan of the scenario that `ask.model` names, or of the one whose turn it is."""
    names = scenario_names(ask.model)
    turn, place = divmod(ask.index, len(names))
    name = names[place]
    return replace(shape_plan(SCENARIOS[name], replace(ask, index=turn), seed=seed), scenario=name)


def shape_plan(shape: Shape, ask: Ask, *, seed: int = 0) -> Plan:
    """Turn a shape into the steps of one request; a pure function of its arguments."""
    fate = shape.odd_requests if ask.index % 2 else ""
    if fate == "reject":
        error = {"message": "Rate limit reached for requests", "type": "rate_limit_error", "code": 429}
        return Plan(status=429, body=msgspec.json.encode({"error": error}))
    writer = _Writer(shape, ask)
    rng = np.random.default_rng([seed, ask.index])
    first_ns = round((shape.first_ms + _exponential(rng, shape.first_tail_ms)) * MS)
    writer.prelude(first_ns)
    wanted = min(shape.tokens or ask.max_tokens, ask.max_tokens)
    limit = min(wanted, shape.break_after) if fate else wanted
    at_ns, sent, events = first_ns, 0, 0
    while sent < limit:
        if events:
            at_ns += round(_gap_ms(rng, shape) * MS)
        for size in _split_reasoning(shape, sent, min(shape.packing[events % len(shape.packing)], limit - sent)):
            writer.tokens(at_ns, sent, size)
            sent += size
        events += 1
    if fate == "cut":
        writer.add(at_ns + MS, StepKind.CUT, b"")
    elif fate == "error":
        frame = {"error": {"message": "EngineCore encountered an issue", "type": "InternalServerError", "code": 500}}
        writer.add(at_ns + MS, StepKind.ERROR, writer.frame(frame))
        writer.add(at_ns + MS, StepKind.DONE, writer.line("[DONE]"), joined=True)
    else:
        writer.ending(at_ns, sent)
    if not ask.stream:
        return Plan(body=writer.whole(sent), body_at_ns=at_ns, said_tokens=sent)
    said = sent if not fate and writer.says_usage else None
    return Plan(steps=_join(writer.steps, shape.joined), said_tokens=said)


def raw_plan(pieces: Sequence[tuple[float, bytes]], *, status: int = 200, cut: bool = False) -> Plan:
    """A plan of bytes that a test chose: `(milliseconds, bytes)` pairs, then a clean end or a cut."""
    steps = [Step(round(at * MS), StepKind.RAW, 0, data) for at, data in pieces]
    if cut:
        steps.append(Step(steps[-1].at_ns if steps else 0, StepKind.CUT, 0, b""))
    return Plan(steps=steps, status=status)


class _Writer:
    """Spells the steps of one stream as an OpenAI-compatible server would."""

    def __init__(self, shape: Shape, ask: Ask) -> None:
        self.shape = shape
        self.ask = ask
        self.steps: list[Step] = []
        self.says_usage = shape.usage == "every_event" or (shape.usage != "none" and ask.include_usage)
        self._role_due = ask.chat and shape.role_alone_ms is None
        self._head = {
            "id": f"{'chatcmpl' if ask.chat else 'cmpl'}-{ask.index}",
            "object": "chat.completion.chunk" if ask.chat else "text_completion",
            "created": 1_700_000_000,
            "model": ask.model,
        }

    def add(self, at_ns: int, kind: StepKind, data: bytes, tokens: int = 0, *, joined: bool = False) -> None:
        pause = round(self.shape.pause_ms * MS) if kind in TOKEN_STEPS else 0
        self.steps.append(Step(at_ns, kind, tokens, data, joined=joined, pause_ns=pause))

    def line(self, text: str) -> bytes:
        return f"data: {text}{self.shape.eol}{self.shape.eol}".encode()

    def frame(self, body: dict[str, Any]) -> bytes:
        return self.line(msgspec.json.encode(body).decode())

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return self.frame({**self._head, "choices": choices, **more})

    def choice(self, delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
        if self.ask.chat:
            return {"index": 0, "delta": delta, "finish_reason": finish}
        return {"index": 0, "text": delta.get("content", ""), "finish_reason": finish}

    def usage(self, sent: int) -> dict[str, Any]:
        prompt = self.ask.prompt_tokens
        out: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": sent, "total_tokens": prompt + sent}
        if self.shape.reasoning_tokens:
            out["completion_tokens_details"] = {"reasoning_tokens": min(sent, self.shape.reasoning_tokens)}
        return out

    def prelude(self, first_ns: int) -> None:
        """Everything that comes before the first token and is none."""
        shape = self.shape
        if shape.role_alone_ms is not None and self.ask.chat:
            data = self.chunk([self.choice({"role": "assistant", "content": ""})])
            self.add(round(shape.role_alone_ms * MS), StepKind.ROLE, data)
        if shape.empty_ms is not None:
            self.add(round(shape.empty_ms * MS), StepKind.EMPTY, self.chunk([self.choice({"content": ""})]))
        if shape.ping_every_ms:
            every = round(shape.ping_every_ms * MS)
            for at_ns in range(every, first_ns, every):
                self.add(at_ns, StepKind.PING, f": ping{shape.eol}{shape.eol}".encode())

    def tokens(self, at_ns: int, sent: int, size: int) -> None:
        """An event with `size` tokens; the role chunk goes right before the first one, in the same write."""
        shape = self.shape
        if self._role_due:
            self._role_due = False
            data = self.chunk([self.choice({"role": "assistant", "content": ""})])
            self.add(at_ns, StepKind.ROLE, data)
        reasoning = sent < shape.reasoning_tokens and self.ask.chat
        text = "".join(f" t{number:03d}" for number in range(sent, sent + size))
        delta = {shape.reasoning_field if reasoning else "content": text}
        more = {"usage": self.usage(sent + size)} if shape.usage == "every_event" else {}
        kind = StepKind.REASONING if reasoning else StepKind.CONTENT
        self.add(at_ns, kind, self.chunk([self.choice(delta)], **more), size)

    def ending(self, at_ns: int, sent: int) -> None:
        """Finish reason, usage, `[DONE]`."""
        shape = self.shape
        finish = "length" if sent >= self.ask.max_tokens else "stop"
        with_finish = {"usage": self.usage(sent)} if shape.usage == "with_finish" and self.says_usage else {}
        self.add(at_ns, StepKind.FINISH, self.chunk([self.choice({}, finish)], **with_finish))
        at_ns += round(shape.usage_late_ms * MS)
        if shape.usage in ("final", "every_event") and self.ask.include_usage:
            self.add(at_ns, StepKind.USAGE, self.chunk([], usage=self.usage(sent)))
        at_ns += round(shape.done_late_ms * MS)
        self.add(at_ns, StepKind.DONE, self.line("[DONE]"))

    def whole(self, sent: int) -> bytes:
        """The answer of a request that did not ask for a stream."""
        text = "".join(f" t{number:03d}" for number in range(sent))
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if sent >= self.ask.max_tokens else "stop"}
        if self.ask.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        kind = "chat.completion" if self.ask.chat else "text_completion"
        return msgspec.json.encode({**self._head, "object": kind, "choices": [choice], "usage": self.usage(sent)})


def _exponential(rng: np.random.Generator, mean: float) -> float:
    return float(rng.exponential(mean)) if mean else 0.0


def _gap_ms(rng: np.random.Generator, shape: Shape) -> float:
    gap = shape.gap_ms * (float(rng.lognormal(0.0, shape.gap_sigma)) if shape.gap_sigma else 1.0)
    if shape.stall_share and rng.random() < shape.stall_share:
        gap += shape.stall_ms
    return gap


def _split_reasoning(shape: Shape, sent: int, size: int) -> list[int]:
    """An event never mixes reasoning with answer text: cut it where one ends."""
    left = shape.reasoning_tokens - sent
    return [left, size - left] if 0 < left < size else [size]


def _join(steps: list[Step], count: int) -> list[Step]:
    """Release `count` token events with one write, at the time of the last of them."""
    if count == 1:
        return steps
    out: list[Step] = []
    group: list[Step] = []

    def flush() -> None:
        at_ns = max((step.at_ns for step in group), default=0)
        out.extend(replace(step, at_ns=at_ns, joined=number > 0) for number, step in enumerate(group))
        group.clear()

    for step in steps:
        if step.kind in TOKEN_STEPS or (step.kind is StepKind.ROLE and not group):
            group.append(step)
            if sum(member.kind in TOKEN_STEPS for member in group) == count:
                flush()
        else:
            flush()
            out.append(step)
    flush()
    return out


PlanFor = Callable[[Ask], Plan]
"""What a scripted upstream plays: any function from a request to a plan."""
