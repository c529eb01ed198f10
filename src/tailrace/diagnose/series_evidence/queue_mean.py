"""Queue and compute time of a request over a window: the means that counters give."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.diagnose.observed import Observed

__all__ = ["QueueMean", "queue_mean"]


class QueueMean(NamedTuple):
    """Means over the window, from counters (or a histogram's sum); `n` requests, 0 where the means are only stated."""

    queue_ms: float
    compute_ms: float
    n: float
    window_s: float | None
    place: str

    @property
    def share(self) -> float:
        """Of queue and compute together."""
        return self.queue_ms / max(self.queue_ms + self.compute_ms, 1e-12)


def queue_mean(observed: Observed) -> QueueMean | None:
    """Queue and compute time of a request; `None` where they were not counted over a window."""
    n, queue, compute = (observed.delta(name) for name in ("finished", "queue_time", "compute_time"))
    if n and queue is not None and compute is not None:
        counter = observed.of_counter("queue_time")[-1]
        window = counter.window_s or observed.number("window_s", "duration_s")
        return QueueMean(queue / n, compute / n, n, window, str(counter.place))
    queues, works = observed.windows("queue"), observed.windows("inference")
    if queues and works and queues[-1].mean is not None and works[-1].mean and not queues[-1].lifetime:
        window = queues[-1].window_s or observed.number("window_s", "duration_s")
        return QueueMean(queues[-1].mean, works[-1].mean, queues[-1].n, window, str(queues[-1].place))
    return None
