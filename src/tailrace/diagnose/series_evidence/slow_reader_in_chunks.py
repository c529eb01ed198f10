"""CLIENT_SLOW_READER in a table of chunks: one client falls ever further behind an upstream that keeps its pace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.observed import Observed, Rows
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["slow_reader_in_chunks"]

LEAST: Final = 10
BEHIND_MS: Final = 500.0
IN_TIME_MS: Final = 100.0
STEADY: Final = 0.9
"""Of the steps from chunk to chunk, the lag falls in less than a tenth: bursts of a buffer fall back each time."""
PACE: Final = 1.5


class _Stream(NamedTuple):
    name: str
    lag: np.ndarray
    gap: float
    """Median gap upstream (ms)."""
    row: int
    arm: str
    taken: float
    """Median gap at the client (ms)."""


def slow_reader_in_chunks(cause: Cause, observed: Observed) -> Finding | None:
    """The stream that is furthest behind at its end."""
    for rows in observed.table("chunks"):
        streams = _streams(rows)
        slow = [one for one in streams if _falls_behind(one)]
        if not slow:
            continue
        others = [one for one in streams if one not in slow]
        in_time = [one for one in others if float(np.median(one.lag)) <= IN_TIME_MS]
        # Most streams behind is a hop's fault, unless those that are in time are another kind of client.
        if len(slow) > len(in_time) > 0 and {one.arm for one in slow} & {one.arm for one in in_time}:
            continue
        return _found(cause, rows, slow, in_time)
    return None


def _streams(rows: Rows) -> list[_Stream]:
    up, client = rows.numbers("t_upstream_ms"), rows.numbers("t_client_ms")
    out = []
    arms = rows.texts("arm")
    for name, members in rows.members("req").items():
        known = members[np.isfinite(up[members]) & np.isfinite(client[members])]
        if known.size >= LEAST:
            gaps = np.diff(up[known])
            taken = float(np.median(np.diff(client[known])))
            arm = arms[int(known[0])]
            out.append(_Stream(name, client[known] - up[known], float(np.median(gaps)), int(known[-1]), arm, taken))
    return out


def _falls_behind(stream: _Stream) -> bool:
    steps = np.diff(stream.lag)
    return bool(stream.lag[-1] - stream.lag[0] >= BEHIND_MS and (steps >= -1.0).mean() >= STEADY)


def _found(cause: Cause, rows: Rows, slow: list[_Stream], in_time: list[_Stream]) -> Finding | None:
    worst = max(slow, key=lambda one: float(one.lag[-1]))
    missing, checked = [], []
    place = str(rows.line_of(worst.row))
    last, first = float(worst.lag[-1]), float(worst.lag[0])
    if in_time:
        usual = float(np.median([one.gap for one in in_time]))
        if worst.gap > PACE * max(usual, 1e-9):
            return None  # upstream is slower for it too
        late = max(float(np.median(one.lag)) for one in in_time)
        checked.append(
            f"{len(in_time)} other stream{'s' if len(in_time) > 1 else ''} stay within {late:.0f} ms; gaps upstream "
            f"are {worst.gap:.0f} ms against {usual:.0f} ms of theirs"
        )
    else:
        missing.append("streams of other clients over the same hop: they must be in time")
    names = ", ".join(one.name for one in slow[:5])
    return cause.finding(
        statement=f"The client of {names} reads more slowly than its answer comes: it is {first:.0f} ms behind the "
        f"engine at the first chunk and {last:.0f} ms at the last, ever more from chunk to chunk, while upstream the "
        f"chunks keep their pace: it takes one every {worst.taken:.3g} ms where "
        f"upstream sends one every {worst.gap:.3g} ms.",
        evidence=[
            Evidence(
                f"{worst.name}: written to the client {first:.0f} ms after its upstream stamp at the first chunk, "
                f"{last:.0f} ms at the last of {worst.lag.size}",
                place,
                "behind_ms",
                round(last, 1),
                "ms",
            ),
            Evidence(f"upstream gap {worst.gap:.0f} ms (median)", place, "upstream_gap", round(worst.gap, 2), "ms"),
            *(Evidence(text, str(rows.place), "others") for text in checked),
        ],
        explains_ms=last - first,
        relation=f"{last:.0f} - {first:.0f} = {last - first:.0f} ms over {worst.lag.size} chunks",
        n=int(worst.lag.size),
        advice="Look at that client (its buffer, its network, rendering while it reads) or send it less: coalesce "
        "chunks for slow readers, cap its answers, and bound the gateway's buffer for it. The engine is not to blame.",
        price="None at the server.",
        verify="tailrace diagnose chunks.csv  # after the client was changed",
        missing=missing,
        rivals=["GW_PROXY_BUFFERING"] if missing else [],
        disproof_checked=checked,
    )
