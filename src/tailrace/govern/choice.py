"""Which of a row of things to keep within a budget: the start, the end, and what scores best between them."""

from __future__ import annotations

from collections.abc import Sequence


def choose(
    sizes: Sequence[float], scores: Sequence[float], budget: float, *, gap: float, head: float, tail: float
) -> list[bool]:
    """What to keep, so that the kept sizes and `gap` for every run of left-out things fit into `budget`.

    First the start, up to the share `head` of the budget, then the end, up to `tail` of it, then whatever scores above
    0, best first (of equals the later one), then what fits next to the end, and next to the start. Both ends of the row
    touch something that is kept, so a thing that is left out there makes a gap too. Nothing at all may fit. Sorting
    apart, the cost is linear.
    """
    n = len(sizes)
    kept = [False] * n
    left = budget - gap if n else budget

    def take(i: int, bound: float) -> bool:
        nonlocal left
        before = kept[i - 1] if i else True
        after = kept[i + 1] if i + 1 < n else True
        # Alone it parts a gap in two; with both neighbours it closes one.
        cost = sizes[i] + (1 - before - after) * gap
        if cost > min(left, bound):
            return False
        left -= cost
        kept[i] = True
        return True

    first, last = 0, n - 1
    bound = left - budget * head
    while first < n and take(first, left - bound):
        first += 1
    bound = left - budget * tail
    while last >= first and take(last, left - bound):
        last -= 1
    for i in sorted((i for i in range(first, last + 1) if scores[i] > 0), key=lambda i: (-scores[i], -i)):
        take(i, left)
    while last >= first and (kept[last] or take(last, left)):
        last -= 1
    while first <= last and (kept[first] or take(first, left)):
        first += 1
    return kept
