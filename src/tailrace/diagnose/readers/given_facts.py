"""Facts as they are typed: `--facts ttft_p99_ms=850`, `--facts before.itl_mean_ms=12`, `--facts gap_s=5..7`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from tailrace.diagnose.readers.cells import read_cell
from tailrace.diagnose.readers.heading import heading
from tailrace.measure.dialect import UNREADABLE
from tailrace.model.errors import InputError

__all__ = ["PLACE", "facts_from", "value_of"]

PLACE: Final = "--facts"
_RANGE: Final = re.compile(r"^([-+]?\d[\d.]*(?:e[-+]?\d+)?)\s*(?:\.\.|…)\s*([-+]?\d[\d.]*(?:e[-+]?\d+)?)$")
_WORDS: Final = {"true": True, "yes": True, "false": False, "no": False}


def facts_from(pairs: Iterable[str]) -> dict[str, Any]:
    """Facts in the form's shape, `{"facts": 1, "arms": …, "context": …}`. InputError for what is no `key=value`.

    `arm.key=value` is a number of an arm. Without an arm, a key that names a latency or a rate is a number of the one
    run that was measured; any other is context.
    """
    arms: dict[str, dict[str, Any]] = {}
    context: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        key = key.strip()
        if not sign or not key or not text.strip():
            raise InputError(
                f"{pair!r} is no key=value", place=PLACE, remedy="Say --facts ttft_p99_ms=850 or before.itl_mean_ms=12."
            )
        arm, dot, name = key.rpartition(".")
        value = value_of(text)
        if dot and arm and name:
            arms.setdefault(arm, {})[name] = value
            continue
        context[key] = value
        if _is_measured(key) and isinstance(value, (int, float, list)):
            arms.setdefault("run", {})[key] = value
    return {"facts": 1, "arms": arms, "context": context}


def _is_measured(key: str) -> bool:
    head = heading(key)
    return bool(head.stat and head.quantity) or head.quantity in {
        "output_tok_s",
        "req_s",
        "decode_tok_s",
        "failed_share",
    }


def value_of(text: str) -> Any:
    """A number, a range `5..7` as a pair, yes or no, JSON, or the text, as which a number with a unit stays."""
    plain = text.strip()
    found = _RANGE.match(plain)
    if found is not None:
        return [float(found[1]), float(found[2])]
    if plain.lower() in _WORDS:
        return _WORDS[plain.lower()]
    if plain[:1] in "[{":
        try:
            return msgspec.json.decode(plain)
        except UNREADABLE:
            return plain
    cell = read_cell(plain)
    if cell.value is not None and not cell.unit and cell.high is None:
        return int(cell.value) if cell.value == int(cell.value) else cell.value
    return plain
