"""Batch sizes that an engine counts itself: from two readings of its statistics to the batch that a request was in."""

from __future__ import annotations

import msgspec


class BatchCounts(msgspec.Struct, frozen=True):
    """What one model has executed since its engine started."""

    executions: dict[int, int] = {}
    """Batch size -> executions of that size."""
    queue_ns: int = 0
    queue_count: int = 0

    def since(self, before: BatchCounts) -> BatchSpan | None:
        """What was executed after `before`; `None` where nothing was, or the engine has begun to count anew."""
        sizes: dict[int, int] = {}
        for size, count in self.executions.items():
            ran = count - before.executions.get(size, 0)
            if ran < 0:
                return None
            if ran:
                sizes[size] = ran
        queued = self.queue_count - before.queue_count
        if not sizes or queued < 0:
            return None
        return BatchSpan(sizes, (self.queue_ns - before.queue_ns) / queued if queued else None)


class BatchSpan(msgspec.Struct, frozen=True):
    """What one model executed between two readings."""

    sizes: dict[int, int]
    """Batch size -> executions."""
    queue_mean_ns: float | None = None
    """Mean wait of the requests that began in between."""

    @property
    def exact(self) -> bool:
        """All batches had one size, so every request was in one of that size."""
        return len(self.sizes) == 1

    @property
    def seen_by_a_request(self) -> int:
        """The batch size that a request saw, on average over requests.

        A batch of eight holds eight requests: the mean over requests is the mean of the size weighted by the size,
        which is never below the mean over executions.
        """
        requests = sum(size * count for size, count in self.sizes.items())
        return round(sum(size * size * count for size, count in self.sizes.items()) / requests)
