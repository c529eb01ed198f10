"""MIX_CACHE_MISS from a table of requests that names its prompts: the same one again, and none of it cached."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.observed import Observed, Rows
from tailrace.diagnose.shorter_prompts import shorter_prompts
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["repeats_in_requests"]

LEAST: Final = 4
LOW: Final = 0.1
REPEATED: Final = 0.5
LEAST_TOKENS: Final = 512
"""A shorter prompt costs little whether it is cached or not."""
_WHOLE: Final = re.compile(r"prompt_?(?:hash|id|key)")
_BEGINNING: Final = re.compile(
    r"prompt_?(?:template|name)|prefix_?(?:hash|id|key|group)?|template|system_prompt|doc(?:ument)?_?id"
)
"""What several prompts share may be short, whatever their length is."""


def repeats_in_requests(cause: Cause, observed: Observed) -> Finding | None:
    """The share of prompt tokens from the cache among requests whose prompt was there before."""
    for rows in observed.table("requests"):
        named = [[name for name in rows.columns if words.fullmatch(name.lower())] for words in (_WHOLE, _BEGINNING)]
        name = next(itertools.chain(*named), "")
        found = _judged(cause, rows, name) if name and rows.has("cached_tokens") and rows.has("prompt_tokens") else None
        if found is not None:
            return found
    return None


def _judged(cause: Cause, rows: Rows, name: str) -> Finding | None:
    names = rows.texts(name)
    prompt, cached = rows.numbers("prompt_tokens"), rows.numbers("cached_tokens")
    seen: Counter[str] = Counter()
    again_mask = np.zeros(len(rows), dtype=bool)
    for row, text in enumerate(names):
        again_mask[row] = bool(text) and seen[text] > 0
        seen[text] += 1
    known = again_mask & np.isfinite(prompt) & np.isfinite(cached)
    n = int(known.sum())
    if n < LEAST or n < REPEATED * len(rows) or float(np.median(prompt[known])) < LEAST_TOKENS:
        return None
    asked, hits = float(prompt[known].sum()), float(cached[known].sum())
    share = hits / asked
    if share > LOW:
        return None
    first = rows.numbers("ttft_ms")[known]
    waited = f", TTFT {np.nanmedian(first):,.0f} ms (median)" if np.isfinite(first).any() else ""
    place = str(rows.place) or "requests"
    whole = _WHOLE.fullmatch(name.lower()) is not None
    what, rest = ("a prompt", "every prompt is computed whole") if whole else (
        "the beginning of a prompt", "what they share is computed again"
    )  # fmt: skip
    return cause.finding(
        statement=f"{n} of {len(rows)} requests repeat {what} ({name}), and {hits:,.0f} of their {asked:,.0f} prompt "
        f"tokens came from the cache ({share:.1%}){waited}: {rest}.",
        evidence=[
            Evidence(f"{hits:.0f} of {asked:.0f} prompt tokens cached", place, "hit", round(share, 4)),
            Evidence(f"{n} of {len(rows)} requests repeat {what}{waited}", place, "repeats", float(n)),
        ],
        explains_ms=None,
        relation=f"hits / prompt tokens of repeats = {hits:.0f} / {asked:.0f} = {share:.1%}",
        n=n,
        advice="Look for what evicts or misaligns the prefix: prefix caching switched off, sliding-window or hybrid "
        "layers, a changing beginning (time, session id) in the prompt, too little KV cache for all prefixes. Until "
        "then: " + shorter_prompts(),
        price="Cached prefixes take KV cache from running requests.",
        verify=again(more="--shared-prefix 2000"),
        missing=[] if whole else [f"how many tokens the prompts of one {name} share: a short beginning is not kept"],
        disproof_checked=[f"the prompts repeat ({n} of {len(rows)})"],
    )
