"""COMPUTE_STALL from a form: all streams freeze together, at a change of the batch or with an idle device, and neither
a prefill, a full KV cache nor a compiler's line explains it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.asked import told
from tailrace.diagnose.arms.measures import measures_of
from tailrace.diagnose.arms.shown import evidence_of_setting
from tailrace.diagnose.kv_cache import KV_CLEAR
from tailrace.diagnose.observed import Observed, Setting
from tailrace.model.finding import Action, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["frozen_together"]

LEAST_MS: Final = 500.0
"""A shorter stop may be one step with a long prompt."""
_ALL: Final = re.compile(
    r"(?:all|every|each).*(?:freez|froz|stop|stall|paus|stuck)|(?:freez|froz|stop|stall|paus)\w*.*together|simultaneous"
)
_BATCH: Final = re.compile(
    r"batch.*(?:change|transition|grow|before|after|->|→)|shape.*(?:change|transition|new)|(?:new|first) shape"
)
_JIT: Final = re.compile(r"\bjit\b|compil|autotun")
_PREFILL: Final = re.compile(r"prefill")
_AMOUNT: Final = re.compile(r"\btok|\brates?\b|\bms\b|chunk|size|\bmax")
"""Names of amounts: they say nothing of whether it happened then."""


def frozen_together(cause: Cause, observed: Observed) -> Finding | None:
    """Needs the statement that all streams stop at once, and for how long."""
    items = [(item, item.name.replace("_", " ").replace(".", " ").lower()) for item in told(observed)]
    together = next((item for item, name in items if _ALL.search(name) and not _denied(item.value)), None)
    groups = measures_of(observed)
    group = groups[0] if groups else None
    length = (
        group.ms(r"freez|froz|stop|stall|gap|pause|hang", r"per|every|period|interval") if group is not None else None
    )
    if together is None or group is None or length is None or (length.ms or 0.0) < LEAST_MS:
        return None
    if _happened(items, _JIT) or _happened(items, _PREFILL):
        return None
    kv = group.find(r"\bkv\b|cache usage|token usage", r"hit|tokens|gib|blocks")
    if kv is not None and kv.share >= KV_CLEAR:
        return None
    util = group.find(r"(?:gpu|device|sm) (?:util|busy|usage|load)|^gpu$")
    shape = next(
        (item for item, name in items if _BATCH.search(f"{name}: {item.value}".lower()) and not _denied(item.value)),
        None,
    )
    none = [item for item, name in items if (_JIT.search(name) or _PREFILL.search(name)) and _denied(item.value)]
    if shape is None and not none and (util is None or util.share > 0.1):
        return None
    shown = [item for item in (together, shape, *none) if item is not None]
    at = (
        f" at a change of the batch or shape ({shape.name.replace('_', ' ')}: {shape.value})"
        if shape is not None
        else ""
    )
    return cause.finding(
        statement=f"All streams freeze together for {(length.ms or 0.0) / 1e3:.4g} s{at}, and no line of a compiler "
        "nor a prefill explains it: something in the step itself stands still.",
        evidence=[
            *(evidence_of_setting(item) for item in shown),
            length.evidence,
            *(item.evidence for item in (kv, util) if item is not None),
        ],
        explains_ms=length.ms,
        relation=f"{(length.ms or 0.0) / 1e3:.4g} s in all streams at once",
        n=1,
        advice="Take a stack dump of the engine and its workers inside such a stop (py-spy dump --pid …): it names the "
        "frame. Do not guess the kernel before.",
        price="A dump stops the process for a moment.",
        verify="tailrace diagnose chunks.csv",
        missing=["a stack dump inside a stop", "chunk stamps of several streams, with running requests"],
        rivals=["FE_EVENTLOOP_BLOCK", "FE_GC_PAUSE"] + ([] if none else ["COMPUTE_JIT"]),
        action=Action.COLLECT,
        level=Level.SUSPECTED,
    )


def _happened(items: list[tuple[Setting, str]], words: re.Pattern[str]) -> bool:
    """Whether a statement whose name matches says yes (a number above 0, a text that is no `no`)."""
    return any(not _denied(item.value) for item, name in items if words.search(name) and not _AMOUNT.search(name))


def _denied(value: object) -> bool:
    return (value.strip().lower() if isinstance(value, str) else value) in (False, 0, "", "no", "none", "false", None)
