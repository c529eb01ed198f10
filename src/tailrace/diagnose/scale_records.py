"""The discipline before "scale", on records: the three questions from their stages, the preconditions from the causes
that could be tested and did not fire.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from tailrace.diagnose.arms.checks import Answer, Check
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.replicas import replicas
from tailrace.diagnose.scale import Ruling
from tailrace.diagnose.window import Window
from tailrace.model.finding import Finding

__all__ = ["rule_on_records"]

ROOM: Final = 0.5
"""KV usage below which the cap of running requests leaves room in the cache."""
NEAR_CAP: Final = 0.9
"""A cap that is not reached holds nobody back: to raise it changes nothing."""
_PRECONDITIONS: Final = (
    ("cap", ("TUNE_NOT_SCALE",)),
    ("skew", ("LB_SKEW", "LB_HOTSPOT")),
    ("preemptions", ("SCHED_KV_PREEMPTION",)),
    ("prefix hits", ("MIX_CACHE_MISS", "LB_CACHE_AFFINITY_LOST")),
    ("grammar share", ("MIX_STRUCTURED_OUTPUT",)),
    ("clock", ("COMPUTE_POWER_CAP", "COMPUTE_THERMAL")),
)
_SEE_OPTIONS: Final = frozenset({"gateway", "simulated"})
"""Vantages whose records say what each request asked for; elsewhere that nothing is said means nothing."""


def rule_on_records(evidence: EvidenceSet, findings: Iterable[Finding], causes: Sequence[Cause]) -> Ruling:
    """What the records of a window allow. `causes` is the catalogue, of which `findings` are those that fired."""
    fired = {finding.code: finding for finding in findings}
    by_code = {cause.code: cause for cause in causes}
    return Ruling(
        (_queue(evidence.now), _phase(evidence.now), _limits(evidence)),
        tuple(_precondition(evidence, name, codes, fired, by_code) for name, codes in _PRECONDITIONS),
    )


def _queue(window: Window) -> Check:
    name = "queue or execution"
    if not window.reported:
        return Check(name, Answer.UNKNOWN, "queue times from the engine (queue or execution?)")
    ttft = max(window.in_tail(np.nan_to_num(window.done.ms("ttft"), nan=0.0)), 1e-9)
    share = window.in_tail(np.nan_to_num(window.done.ms("queue"), nan=0.0)) / ttft
    return Check(name, Answer.HOLDS, f"{min(share, 1.0):.0%} of the slow requests' TTFT is queue")


def _phase(window: Window) -> Check:
    name = "prefill or decode"
    prefill, decode = (window.done.ms(stage) for stage in ("prefill", "decode"))
    if np.isnan(prefill).all() or np.isnan(decode).all():
        return Check(name, Answer.UNKNOWN, "prefill and decode times from the engine (prefill or decode?)")
    spent = [window.in_tail(np.nan_to_num(stage, nan=0.0)) for stage in (prefill, decode)]
    return Check(
        name,
        Answer.HOLDS,
        f"{'prefill' if spent[0] > spent[1] else 'decode'} (prefill {spent[0]:.0f} ms, decode {spent[1]:.0f} ms)",
    )


def _limits(evidence: EvidenceSet) -> Check:
    name = "do the batch limits fit the lengths"
    kv, cap = evidence.kv_usage, evidence.knobs.get("max_num_seqs")
    running = evidence.now.done.column("running_at_admission")
    most = None if np.isnan(running).all() else float(np.nanmax(running))
    if kv is None or (cap is None and most is None):
        return Check(name, Answer.UNKNOWN, "KV usage and max_num_seqs (do the batch limits fit the lengths?)")
    if isinstance(cap, int) and most is not None and most < NEAR_CAP * cap:
        return Check(name, Answer.HOLDS, f"max_num_seqs {cap} is not reached: {most:.0f} running at most")
    words = f"KV usage {kv:.0%} with " + (f"max_num_seqs {cap}" if cap is not None else f"{most:.0f} running at most")
    return Check(
        name, Answer.FAILS if kv < ROOM else Answer.HOLDS, words + (": the cap leaves room" if kv < ROOM else "")
    )


def _precondition(
    evidence: EvidenceSet, name: str, codes: tuple[str, ...], fired: dict[str, Finding], causes: dict[str, Cause]
) -> Check:
    found = next((code for code in codes if code in fired), None)
    if found is not None:
        return Check(name, Answer.FAILS, f"{found} fires: {fired[found].statement.rstrip('.')}")
    if replicas(evidence.now).n < 2:
        codes = tuple(code for code in codes if not code.startswith("LB_"))  # there is nothing to balance between
        if not codes:
            return Check(name, Answer.HOLDS, "one replica")
    if name == "grammar share" and evidence.vantage in _SEE_OPTIONS:
        asked = evidence.now.done.column("grammar").astype(bool)
        if not asked.any():
            return Check(name, Answer.HOLDS, "no request asks for a grammar")
    lacks = [why for code in codes if code in causes and (why := causes[code].cannot_run(evidence))]
    if lacks:
        return Check(name, Answer.UNKNOWN, lacks[0])
    return Check(name, Answer.HOLDS, f"tested ({', '.join(codes)}), not found")
