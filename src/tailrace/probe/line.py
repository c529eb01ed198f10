"""Lines: the ways of asking of one run, each a target with the texts that go to it."""

from __future__ import annotations

from tailrace.probe.compose import composer
from tailrace.probe.request import Api, Ask, Compose, Message
from tailrace.probe.spec import BenchSpec
from tailrace.probe.target import Target
from tailrace.probe.tokenizer import load_tokenizer
from tailrace.probe.upload import Uploads
from tailrace.workload.exact_text import ExactWriter
from tailrace.workload.plan import PlannedRequest
from tailrace.workload.text import FixedPrompt, Prompts, PromptWriter

_TURNS_APART = 1 << 40
"""Between the numbers under which the texts of a session's turns are drawn."""


class Line:
    """How the requests of a class are asked."""

    def __init__(self, target: Target, prompts: Prompts, compose: Compose, *, batch: int = 1) -> None:
        self.target = target
        self.compose = compose
        self.prompts = prompts
        self.batch = batch if target.api is Api.EMBEDDINGS else 1

    def ask(
        self,
        planned: PlannedRequest,
        number: int,
        request_id: str,
        session_id: str = "",
        history: list[Message] | None = None,
    ) -> Ask:
        """The request with its text. `number` is its own, also among turns and the warm-up's requests."""
        text = planned.text
        if text is not None and planned.turn == 0:
            # Recorded texts are the same in every run; without this, an earlier run's prefix cache would answer.
            text = f"[{self.prompts.nonce}-{planned.number}]\n{text}"
        mine = planned.prompt_tokens
        inputs: tuple[str, ...] = ()
        if self.batch > 1:
            inputs = tuple(self.prompts.write(number * self.batch + i, mine, planned.prefix) for i in range(self.batch))
        if text is None:
            text = inputs[0] if inputs else self.prompts.write(number, mine, planned.prefix)
        return Ask(
            text=text,
            prompt_tokens=mine,
            output_tokens=planned.output_tokens,
            request_id=request_id,
            session_id=session_id,
            number=number,
            history=history or (),
            inputs=inputs,
            audio_ms=planned.audio_ms,
        )

    def planned_tokens(self, planned: PlannedRequest) -> int | None:
        """Prompt tokens that a request is to have, `None` where nobody planned any."""
        if self.target.api is Api.TRANSCRIPTIONS or isinstance(self.prompts, FixedPrompt):
            return None
        return planned.prompt_tokens * self.batch

    def audio_seconds(self, ask: Ask) -> float | None:
        """How long the recording that a request sends is."""
        return self.compose.seconds(ask) if isinstance(self.compose, Uploads) else None


def number_of(planned: PlannedRequest, *, measured: bool) -> int:
    """The number under which a request's text is drawn: its own among all turns, and apart from the warm-up's."""
    number = planned.number + (planned.turn or 0) * _TURNS_APART
    return number if measured else -1 - number


def lines_of(spec: BenchSpec, target: Target) -> dict[str, Line]:
    """The line of each class that has its own, and that of all others under the empty name."""
    batches = {one.name: one.traits.batch for one in spec.workload.mix}
    shared = spec.workload.traits.batch if not batches else 1
    base = composer(spec, target.api, target.options)
    out = {"": Line(target, prompts_of(spec, target), base, batch=shared)}
    for name, batch in batches.items():
        mine = target.others.get(name)
        if mine is not None:
            out[name] = Line(mine, prompts_of(spec, mine), composer(spec, mine.api, mine.options), batch=batch)
        elif batch > 1:
            out[name] = Line(target, out[""].prompts, base, batch=batch)
    return out


def prompts_of(spec: BenchSpec, target: Target) -> Prompts:
    """What writes the texts that go to `target`."""
    if spec.prompt is not None:
        return FixedPrompt(spec.prompt, nonce=spec.nonce)
    chars_per_token, overhead = target.calibration
    if spec.tokenizer:
        return ExactWriter(
            load_tokenizer(spec.tokenizer).count,
            seed=spec.seed,
            nonce=spec.nonce,
            overhead_tokens=overhead,
            shared_prefix=spec.shared_prefix,
        )
    return PromptWriter(
        seed=spec.seed,
        nonce=spec.nonce,
        chars_per_token=chars_per_token,
        overhead_tokens=overhead,
        shared_prefix=spec.shared_prefix,
    )
