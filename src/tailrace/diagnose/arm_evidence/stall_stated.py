"""ENGINE_STALL from a form: requests run, the KV cache has room, no prompt is computed and hardly a token comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.asked import as_share, number_stated
from tailrace.diagnose.arms.shown import evidence_of_setting
from tailrace.diagnose.kv_cache import KV_CLEAR
from tailrace.diagnose.log_evidence.deadlock import stated_load
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["stall_stated"]

SLOW: Final = 0.1
CRAWL: Final = 0.5


def stall_stated(cause: Cause, observed: Observed) -> Finding | None:
    """Generation / running far below the usual rate of a stream, and prompt throughput 0."""
    told = stated_load(observed)
    running, made, prompt = told.get("running"), told.get("made"), told.get("prompt")
    if running is None or made is None or not running.number or made.number is None or observed.series:
        return None
    if prompt is not None and prompt.number:
        return None
    kv = number_stated(observed, r"kv (?:cache )?(?:usage|util)|^kv(?: cache)?(?: pct| percent)?$|token usage")
    if kv is not None and kv.number is not None and as_share(kv.number, kv.unit) >= KV_CLEAR:
        return None
    usual = number_stated(
        observed, r"(?:usual|normal|healthy|alone|expected|typical).*tok s|tok s.*(?:usual|normal|alone|healthy)"
    )
    rate = made.number / running.number
    known = usual is not None and usual.number is not None and usual.number > 0
    if rate >= (SLOW * (usual.number or 0.0) if known and usual is not None else CRAWL):
        return None
    lasted = number_stated(observed, r"duration|lasted|lines|interval|window s|for s$|minutes")
    missing = ["a stack dump of the engine and its workers while it lasts"]
    if prompt is None:
        missing.append("prompt throughput of the same time: a prefill may be in progress")
    if kv is None:
        missing.append("KV usage of the same time")
    if lasted is None:
        missing.append("for how long it stands so: one line alone may be an artefact of the pause before it")
    against = f", usual {usual.number:g}" if known and usual is not None else ""
    shown = [item for item in (running, made, prompt, kv, usual, lasted) if item is not None]
    return cause.finding(
        statement=f"The engine stands still in a step: {running.number:g} requests run and {rate:.2f} tok/s per stream "
        "come out, while no prompt is computed and the KV cache has room. That is no capacity.",
        evidence=[
            *(evidence_of_setting(item) for item in shown),
            Evidence(f"{made.number:g} / {running.number:g} = {rate:.2f} tok/s per stream", "computed", "rate", rate),
        ],
        explains_ms=None,
        relation=f"{made.number:g}/{running.number:g} = {rate:.2f} tok/s per stream{against}",
        n=1,
        advice="Take a stack dump of the engine and its workers while it lasts (py-spy dump --pid …); more replicas or "
        "a longer timeout do not help.",
        price="A dump stops the process for a moment.",
        verify="tailrace diagnose vllm.log",
        missing=missing[1:] if len(missing) > 1 else [],
        rivals=["SCHED_PREFILL_STEALS_DECODE"] if prompt is None else [],
        disproof_checked=["prompt throughput 0"] if prompt is not None else [],
    )
