"""What of the engine is known to have changed between the two windows."""

from __future__ import annotations

from typing import Final

from tailrace.analyze.labels import codes_of
from tailrace.diagnose.evidence import EvidenceSet

__all__ = ["changed_between"]

_FIELDS: Final = {
    "engine": "engine",
    "engine_version": "version",
    "model": "model",
    "dtype": "precision",
    "quantization": "quantisation",
}


def changed_between(evidence: EvidenceSet) -> list[str]:
    """`version 0.9.1 -> 0.9.2`: facts that every record of one window says otherwise than those of the other."""
    before, now = evidence.before, evidence.now
    if before is None:
        return []
    out = []
    for field, word in _FIELDS.items():
        old, new = (sorted(set(codes_of(side.done.column(field))[1]) - {""}) for side in (before, now))
        if old and new and old != new:
            out.append(f"{word} {', '.join(old)} -> {', '.join(new)}")
    return out
