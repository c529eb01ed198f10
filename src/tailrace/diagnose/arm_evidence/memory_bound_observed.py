"""COMPUTE_MEMORY_BOUND: the device waits for its memory; more arithmetic would not help."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.asked import TAIL_FIRST, as_share, figure, told, worded
from tailrace.diagnose.arms.moments import middle
from tailrace.diagnose.arms.shown import number, quantity
from tailrace.diagnose.limits import TPOT_MS
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["memory_bound_observed"]

DRAM: Final = 0.6
SM: Final = 0.5
_DRAM: Final = re.compile(
    r"dram|memory (?:active|bandwidth|bw|throughput)|hbm|mem(?:ory)?[ _](?:util|copy|bandwidth)", re.IGNORECASE
)
_SM: Final = re.compile(
    r"\bsm[ _]?(?:active|util|busy|occup|throughput)|tensor[ _](?:active|util|core)|compute (?:util|active|"
    r"throughput)|sm$",
    re.IGNORECASE,
)


def memory_bound_observed(cause: Cause, observed: Observed) -> Finding | None:
    """Both shares of one window, and the time per token."""
    dram, sm = _share(observed, _DRAM), _share(observed, _SM)
    if dram is None or sm is None or dram[0] < DRAM or sm[0] > SM or dram[0] < 1.5 * sm[0]:
        return None
    pace = next(
        (
            (arm, value)
            for arm in (*observed.arms, *middle(observed))
            if (value := figure(arm, "tpot", "itl", stats=TAIL_FIRST)) is not None
        ),
        None,
    )
    if pace is not None and pace[1].value <= TPOT_MS and pace[1].stat in ("p99", "p95"):
        return None
    missing = (
        []
        if pace is not None and pace[1].value > TPOT_MS
        else ["TPOT of the requests in that window: a memory-bound decode that is within its objective is fine"]
    )
    evidence = [dram[1], sm[1]]
    if pace is not None:
        evidence.append(
            Evidence(
                f"{pace[0].name}: {quantity(pace[1])} {number(pace[1].value, 'ms')}",
                str(pace[1].place) or "form",
                pace[1].key,
                pace[1].value,
                "ms",
            )
        )
    return cause.finding(
        action=Action.TUNE,
        statement=f"The device's memory is busy {number(dram[0], 'share')} of the time and its cores "
        f"{number(sm[0], 'share')}: decoding is bound by reading weights and KV cache.",
        evidence=evidence,
        explains_ms=None,
        relation=f"DRAM active {dram[0]:.0%} against SM active {sm[0]:.0%}",
        n=1,
        advice="Read fewer bytes a token: quantise weights or KV cache (fp8), batch more requests into one read "
        "(max_num_seqs), or speculate; a faster core clock does nothing.",
        price="Quantisation costs some quality; a larger batch makes each token a little later.",
        verify=(
            "tailrace bench http://localhost:8000 --rate 5 --duration 60 --out after.run && tailrace "
            "compare before.run after.run  # dcgmi dmon -e 1002,1005 meanwhile: SM active, DRAM "
            "active"
        ),
        missing=missing,
    )


def _share(observed: Observed, words: re.Pattern[str]) -> tuple[float, Evidence] | None:
    for arm in (*observed.arms, *middle(observed)):
        found = worded(arm, words.pattern)
        if found is not None:
            share = as_share(found.value, found.unit)
            return share, Evidence(
                f"{arm.name}: {found.label} {number(share, 'share')}",
                str(found.place) or "form",
                found.key,
                share,
                "share",
            )
    for item in told(observed):
        if item.number is not None and words.search(item.name.replace("_", " ")):
            share = as_share(item.number, item.unit)
            return share, Evidence(
                f"{item.name.replace('_', ' ')}: {number(share, 'share')}",
                str(item.place) or "form",
                item.name,
                share,
                "share",
            )
    return None
