"""LB_HOTSPOT: affinity sends one group of requests to one replica, and saves less than it costs."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.record_evidence.skew import lost_on_hot, threshold
from tailrace.diagnose.replicas import LEAST, replicas
from tailrace.diagnose.reuse import groups, reuse
from tailrace.model.finding import Evidence, Finding

__all__ = ["hotspot_in_records"]

ONE_GROUP: Final = 0.4
"""Of the requests of the fullest replica, those of one group."""
BOUND: Final = 0.8
"""Of the group's requests, those on that replica."""


def hotspot_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """A skew whose fullest replica serves mostly one group that goes nowhere else."""
    window = evidence.now
    if cause.cannot_run(evidence) or window.n < 50:
        return None
    served = replicas(window)
    found = groups(window)
    if found is None or served.skew < threshold(served.n):
        return None
    word, codes, names = found
    hot = served.of_row == served.hot
    if hot.sum() < LEAST:
        return None
    counts = np.bincount(codes[hot], minlength=len(names))
    place = int(np.argmax(counts))
    group = names[place]
    share, mine = float(counts.max()) / float(hot.sum()), codes == place
    bound = float((mine & hot).sum()) / max(float(mine.sum()), 1.0)
    explains = window.explain(cause.code, np.where(mine | hot, lost_on_hot(window, served), 0.0))
    if not group or share < ONE_GROUP or bound < BOUND or not cause.carries(evidence, explains):
        return None
    cache = reuse(window)
    missing = [] if cache.known else ["cached tokens of the requests (usage.prompt_tokens_details)"]
    rate = window.seconds_a_token
    mean = float(cache.cached[hot].mean()) if cache.known else 0.0
    saved = 0.0 if np.isnan(rate) else mean * rate * 1e3
    queue = window.lost.engine_queue + window.lost.first_token
    rest = (served.of_row >= 0) & ~hot
    added = float(queue[hot].mean()) - (float(queue[rest].mean()) if rest.any() else 0.0)
    if cache.known and saved > added > 0:
        return None
    name = served.names[served.hot]
    return cause.finding(
        statement=f"Affinity makes replica {name!r} hot: {share:.0%} of its requests are of one {word} "
        f"({group!r}), {bound:.0%} of which go there; the cache saves {saved:.0f} ms a request and the wait adds "
        f"{added:.0f} ms.",
        evidence=[
            Evidence(
                f"mean in flight by replica: {served.words()}; largest / mean = {served.skew:.2f}",
                "record:backend, record:e2e_ns",
                "skew",
                round(served.skew, 3),
            ),
            Evidence(
                f"{share:.0%} of the requests of {name!r} are of {word} {group!r}, {bound:.0%} of its requests go "
                "there",
                f"record:{word}, record:backend",
                "group_share",
                round(share, 4),
            ),
            Evidence(
                f"prefill saved by the cache {saved:.0f} ms a request ({mean:,.0f} cached tokens), wait added "
                f"{added:.0f} ms",
                "record:cached_tokens, record:ttft_ns",
                "added_ms",
                round(added, 1),
                "ms",
            ),
        ],
        explains_ms=explains,
        relation=f"saved {saved:.0f} ms < added queue {added:.0f} ms a request",
        n=int(hot.sum()),
        advice="Bound the affinity by load (send on when the replica has more under way than 1.25 x the mean), and "
        "spread a hot prefix over several replicas; each then computes it once.",
        price="Some cache hits are lost.",
        verify=evidence.verify_command,
        missing=missing,
        disproof_checked=[f"{np.count_nonzero(counts)} groups on that replica, the first with {share:.0%}"],
    )
