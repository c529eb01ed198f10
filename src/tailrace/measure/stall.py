"""Stalls: when a stream that had begun stands still.

Two rules, because each is blind to what the other sees. Chunked prefill turns one giant gap into many medium ones:
three gaps in a row catch those, a single gap against the recent rhythm catches the giant.
"""

from __future__ import annotations

from statistics import median

from tailrace.model.thresholds import SlowThresholds


class StallWatch:
    """Judges gaps above the watch level, in order.

    A *stall* is one episode of consecutive gaps above `gap_ns` that is at least `gaps_in_a_row` long, or a single gap
    above max(`single_gap_ns`, `single_gap_factor` x median of the `window` gaps before it). An episode counts once
    however long it is; `longest_ns` is the longest single gap of any stall.
    """

    __slots__ = ("_counted", "_run_longest", "_thresholds", "by_rule", "count", "longest_ns", "over", "run", "watch_ns")

    def __init__(self, thresholds: SlowThresholds) -> None:
        self._thresholds = thresholds
        self.watch_ns = min(thresholds.gap_ns, thresholds.single_gap_ns)
        """Gaps up to this need no judging: the caller only resets `run`."""
        self.run = 0
        """Gaps above `gap_ns` in a row, up to now."""
        self._counted = False
        self._run_longest = 0
        self.count = 0
        self.over = 0
        """Gaps above `gap_ns`."""
        self.longest_ns: int | None = None
        self.by_rule: dict[str, int] = {}
        """Rule -> how often it fired: `stall` (in a row), `gap` (a single one)."""

    def end_run(self) -> None:
        """A gap at or below the watch level came."""
        self.run = 0
        self._counted = False
        self._run_longest = 0

    def judge(self, gap_ns: int, recent: list[int]) -> None:
        """A gap above the watch level. `recent` are the gaps before it, oldest first, the window at most."""
        limits = self._thresholds
        if gap_ns > limits.gap_ns:
            self.run += 1
            self.over += 1
            self._run_longest = max(self._run_longest, gap_ns)
        else:
            self.end_run()
        if self.is_single(gap_ns, recent):
            self._fire("gap", gap_ns)
        if self.run == limits.gaps_in_a_row:
            self._fire("stall", self._run_longest)
        elif self.run and self._counted:
            self.longest_ns = max(self.longest_ns or 0, gap_ns)
        if not self.run:
            self._counted = False

    def is_single(self, gap_ns: int, recent: list[int]) -> bool:
        """Whether `gap_ns` alone is a stall after the gaps `recent`."""
        limits = self._thresholds
        if gap_ns <= limits.single_gap_ns:
            return False
        return not recent or gap_ns > limits.single_gap_factor * median(recent)

    def _fire(self, rule: str, longest: int) -> None:
        self.by_rule[rule] = self.by_rule.get(rule, 0) + 1
        self.longest_ns = max(self.longest_ns or 0, longest)
        if not self._counted:
            self.count += 1
            self._counted = True
