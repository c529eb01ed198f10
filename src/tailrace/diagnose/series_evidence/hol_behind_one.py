"""Short requests that all get their first token when one long prompt gets its own, in a table of requests."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Observed, Rows
from tailrace.diagnose.shorter_prompts import shorter_prompts
from tailrace.model.finding import Action, Evidence, Finding
from tailrace.stats.quantiles import needed

__all__ = ["hol_behind_one"]

Floats = NDArray[np.float64]
LONGER: Final = 8.0
"""Its prompt against the usual one."""
LEAST_MS: Final = 1000.0
LEAST: Final = 3
HELD: Final = 0.8
"""Share of the short ones sent during its prefill that come only after its first token."""
LATER: Final = 3.0
SOON: Final = 0.25
"""They come within this share of its own time to the first token after it: it was what they waited for."""


class _Held(NamedTuple):
    long: int
    behind: NDArray[np.int64]
    calm: NDArray[np.int64]


def hol_behind_one(cause: Cause, observed: Observed) -> Finding | None:
    """Of the tables of requests the first in which a single prefill holds the others."""
    for rows in observed.table("requests"):
        if rows.has("t_send_ms") and rows.has("t_first_ms") and rows.has("prompt_tokens"):
            held = _held(rows)
            if held is not None:
                return _found(cause, rows, held)
    return None


def _held(rows: Rows) -> _Held | None:
    """The long prompt behind which most wait; `None` where none holds anybody, or nobody was fast without one."""
    tokens, send, first = rows.numbers("prompt_tokens"), rows.numbers("t_send_ms"), rows.numbers("t_first_ms")
    ttft = first - send
    known = np.isfinite(tokens) & np.isfinite(ttft) & (ttft >= 0) & (tokens > 0)
    if known.sum() < 2 * LEAST or len({arm for arm in rows.texts("arm") if arm}) > 1:
        return None
    usual = float(np.median(tokens[known]))
    with np.errstate(invalid="ignore"):
        longs = known & (tokens >= LONGER * usual) & (ttft >= LEAST_MS)
    short = known & (tokens < LONGER * usual)
    if not longs.any() or longs.sum() > 0.5 * known.sum():
        return None
    inside = np.zeros(len(rows), dtype=bool)
    for row in np.flatnonzero(longs):
        inside |= (send >= send[row]) & (send < first[row])
    calm = np.flatnonzero(short & ~inside)
    best: _Held | None = None
    for row in np.flatnonzero(longs):
        during = np.flatnonzero(short & (send >= send[row]) & (send < first[row] - 0.02 * ttft[row]))
        with np.errstate(invalid="ignore"):
            behind = during[(first[during] >= first[row]) & (first[during] <= first[row] + SOON * ttft[row])]
        if behind.size < LEAST or behind.size < HELD * during.size:
            continue
        # Where nobody came at another time, what their own tokens take at the long one's rate.
        alone = float(np.median(tokens[behind])) / float(tokens[row]) * float(ttft[row])
        fast = float(np.median(ttft[calm])) if calm.size else alone
        # Whoever came just before its end waits little: the first half of them tells.
        waited = float(np.median(ttft[behind]))
        if not waited >= LATER * fast:
            continue
        if best is None or behind.size > best.behind.size:
            best = _Held(int(row), behind, calm)
    return best


def _found(cause: Cause, rows: Rows, held: _Held) -> Finding:
    tokens, send, first = rows.numbers("prompt_tokens"), rows.numbers("t_send_ms"), rows.numbers("t_first_ms")
    ttft = first - send
    row, behind, calm = held
    took, size = float(ttft[row]), float(tokens[row])
    rate = size / took * 1e3
    longest, least = float(ttft[behind].max()), float(ttft[behind].min())
    few = float(np.median(tokens[behind]))
    usual = float(np.median(ttft[calm])) if calm.size else few / rate * 1e3
    n = int(np.isfinite(ttft).sum())
    after = float((first[behind] - first[row]).max())
    place = str(rows.line_of(row))
    missing = [] if calm.size else ["a short request at a time when no long prompt is computed"]
    when = "when no long prompt is there" if calm.size else "by their own tokens at its rate"
    return cause.finding(
        statement=f"{behind.size} short requests sent while one prompt of {size:.0f} tokens was computed "
        f"({took / 1e3:.3g} s) "
        f"all get their first token right after its own: they wait {least / 1e3:.3g} to {longest / 1e3:.3g} s, the "
        f"sooner they came the longer, and {usual:.0f} ms {when}.",
        evidence=[
            Evidence(
                f"prompt of {size:.0f} tokens: TTFT {took / 1e3:.3g} s, {size:.0f}/{took / 1e3:.4g} s = {rate:.0f} "
                "tok/s",
                place, "ttft_long", took, "ms",
            ),
            Evidence(
                f"{behind.size} short prompts ({few:.0f} tokens) sent meanwhile: TTFT {least / 1e3:.3g} to "
                f"{longest / 1e3:.3g} s ({longest:.0f} ms at most), "
                f"all within {after:.0f} ms after its first token",
                str(rows.line_of(int(behind[0]))), "ttft_behind", longest, "ms",
            ),
            Evidence(
                f"{calm.size} short prompts at other times: TTFT {usual:.0f} ms (median)"
                if calm.size
                else f"{few:.0f} tokens / {rate:.0f} tok/s = {usual:.0f} ms",
                str(rows.line_of(int(calm[0]))) if calm.size else "computed", "ttft_alone", usual, "ms",
            ),
            Evidence(
                f"n = {n}, so only the maximum may be quoted ({needed(0.99)} samples would support a p99)",
                str(rows.place), "n", float(n),
            ),
        ],
        explains_ms=float(np.median(ttft[behind])) - usual,
        relation=f"{size:.0f} tokens / {took / 1e3:.4g} s = {rate:.0f} tok/s; wait of a short one = its send to that "
        f"first token: {longest / 1e3:.3g} s at most, {longest:.0f} ms / {usual:.0f} ms = "
        f"{longest / max(usual, 1e-9):.0f} x",
        n=n,
        advice="Give long prompts a lane of their own (Tailrace: `match: {min_prompt_tokens: …}` with few running), "
        "take the shortest first with a bounded wait, split the prefill (chunked prefill; vLLM: "
        "--max-long-partial-prefills, --long-prefill-token-threshold), or limit inputs. "
        + shorter_prompts(tokens=size, ttft_ms=took),
        price="Long prompts wait longer: bound their wait.",
        verify=(
            "tailrace bench http://localhost:8000 --rate 2 --mix 'short:0.9,long:0.1' --duration 120 "
            "--out after.run && tailrace compare before.run after.run"
        ),
        missing=missing,
        disproof_checked=[f"short requests without a long prompt before them are fast ({usual:.0f} ms)"]
        if calm.size
        else [],
        action=Action.TUNE,
    )  # fmt: skip
