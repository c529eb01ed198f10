"""Arithmetic over a run of decode steps: each is longer than the last by the same amount, and blocks come in cycles."""

from __future__ import annotations


def length_of(steps: int, first: int, rise: int) -> int:
    """Duration of `steps` steps, the first `first` long and each next `rise` longer."""
    return steps * first + rise * (steps * (steps - 1) // 2)


def steps_to(gap: int, first: int, rise: int) -> int:
    """The least number of steps (at least 1) that last `gap` or longer together.

    The root of a quadratic, estimated in floating point and settled in integers.
    """
    if rise:
        # With h = first - rise/2, the length of n steps is rise/2 * n^2 + h * n.
        half = first - rise / 2
        steps = max(int(((half * half + 2 * rise * gap) ** 0.5 - half) / rise), 1)
    else:
        steps = max(gap // first, 1)
    while length_of(steps, first, rise) < gap:
        steps += 1
    while steps > 1 and length_of(steps - 1, first, rise) >= gap:
        steps -= 1
    return steps


def blocks_for(grow: list[int], phase: int, steps: int) -> int:
    """Blocks that `steps` steps from `phase` on need; `grow` says how many a step needs, by phase."""
    cycles, rest = divmod(steps, len(grow))
    end = phase + rest
    part = sum(grow[phase:end]) + (sum(grow[: end - len(grow)]) if end > len(grow) else 0)
    return cycles * sum(grow) + part if cycles else part


def steps_within(grow: list[int], phase: int, free: int) -> int:
    """How many steps from `phase` on can be served with `free` blocks, when a whole cycle needs at least one."""
    cycle = sum(grow)
    steps = free // cycle * len(grow)
    free %= cycle
    while (needed := grow[(phase + steps) % len(grow)]) <= free:
        free -= needed
        steps += 1
    return steps
