"""What the engine counts about itself, in the terms of vLLM's metrics."""

from __future__ import annotations


class EngineCounters:
    """Monotonic counters since start. Times are picoseconds of simulated time."""

    __slots__ = (
        "aborted",
        "arrived",
        "busy_ps",
        "finished",
        "generation_tokens",
        "iteration_tokens",
        "preemptions",
        "prefix_hit_tokens",
        "prefix_query_tokens",
        "prompt_tokens",
        "queue_ps",
        "refused",
        "scheduled",
    )

    def __init__(self) -> None:
        self.arrived = 0
        self.scheduled = 0
        """Requests that were scheduled for the first time; `queue_ps` sums their waits."""
        self.queue_ps = 0
        self.finished = 0
        self.aborted = 0
        self.refused = 0
        self.prompt_tokens = 0
        """Prompt tokens of scheduled requests, cached ones included."""
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0
        self.generation_tokens = 0
        self.preemptions = 0
        self.busy_ps = 0
        """Time in which a step was running."""
        self.iteration_tokens: dict[int, int] = {}
        """Tokens computed in a step -> how many such steps there were."""

    @property
    def steps(self) -> int:
        """Steps so far."""
        return sum(self.iteration_tokens.values())

    @property
    def computed_tokens(self) -> int:
        """Tokens computed so far, recomputation included."""
        return sum(tokens * steps for tokens, steps in self.iteration_tokens.items())
