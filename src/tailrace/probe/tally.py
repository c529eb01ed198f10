"""The tally of a run: what was planned of each request beside what the server counted."""

from __future__ import annotations

from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.workload.plan import PlannedRequest
from tailrace.workload.prefix import Reuse


class Tally:
    """Counts, request by request, for the run's trailer.

    A later turn's prompt has no planned length: its history is what the server said.
    """

    def __init__(self) -> None:
        self.planned = self.counted = self.prompts = self.exact = 0
        self.asked = self.answered = self.answers = self.early = 0
        self.cached = self.cached_of = 0
        self.reuse = Reuse()

    def note(self, planned: PlannedRequest, planned_tokens: int | None, record: RequestRecord) -> None:
        """Take one request that is over."""
        counted = record.prompt_tokens if record.prompt_tokens_source == "usage" else None
        if planned_tokens is not None and not planned.turn:
            if planned.prefix:
                self.reuse.note(planned_tokens, planned.prefix)
            elif self.reuse.tokens:
                self.reuse.note(planned_tokens, ())
            if counted is not None and planned.text is None:
                self.prompts += 1
                self.planned += planned_tokens
                self.counted += counted
                self.exact += counted == planned_tokens
        if counted is not None and record.cached_tokens is not None:
            self.cached += record.cached_tokens
            self.cached_of += counted
        output = record.output_tokens
        if record.outcome is OutcomeKind.COMPLETED and record.max_tokens is not None and output is not None:
            self.answers += 1
            self.asked += record.max_tokens
            self.answered += output
            self.early += output < record.max_tokens

    def counters(self) -> dict[str, float]:
        """For the trailer; sums, so that the tallies of several generators add up each of its own requests."""
        out = {
            "planned_prompt_tokens": self.planned,
            "counted_prompt_tokens": self.counted,
            "counted_prompts": self.prompts,
            "exact_prompts": self.exact,
            "planned_output_tokens": self.asked,
            "counted_output_tokens": self.answered,
            "counted_answers": self.answers,
            "early_answers": self.early,
        }
        if self.cached_of:
            out |= {"cached_prompt_tokens": self.cached, "cached_of_tokens": self.cached_of}
        if self.reuse.tokens:
            out |= {"reusable_prompt_tokens": self.reuse.found, "reusable_of_tokens": self.reuse.tokens}
        return {name: float(value) for name, value in out.items()}
