"""Thresholds for a comparison, as a file of rules writes them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from tailrace.model.errors import InputError

__all__ = ["ERROR_RATE", "RATES", "Limit", "Rule", "parse_amount", "rules_from", "rules_schema"]

ERROR_RATE: Final = "error_rate"
RATES: Final = ("requests_per_s", "tokens_per_s", "goodput_per_s")
_LATENCY: Final = r"(longest_wait|ttft|longest_gap|chunk_gap|tpot|e2e)(_from_schedule)?_ms\.(p50|p90|p95|p99|max)"
_NAME: Final = re.compile(rf"^({_LATENCY}|{ERROR_RATE}|{'|'.join(RATES)})$")
_AMOUNT: Final = r"^\d+(\.\d+)?\s*(%|us|ms|s|/s)?$"
_PARTS: Final = re.compile(r"^(\d+(?:\.\d+)?)\s*(%|us|ms|s|/s)?$")
_MS: Final = {"us": 1e-3, "ms": 1.0, "s": 1e3}

Amount = Annotated[str, Meta(pattern=_AMOUNT)] | int | float


class Limit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one metric must keep; everything that is set must hold.

    `max_increase: 10%` (or `50ms`): B may be larger than A by so much; `max_decrease` for what should be high.
    `max: 500ms` and `min: 20/s` are bounds of B itself.
    """

    max_increase: Amount | None = None
    max_decrease: Amount | None = None
    max: Amount | None = None
    min: Amount | None = None


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One threshold, read."""

    scope: str
    """The class; empty for all requests."""
    metric: str
    """`ttft_ms.p99`, `error_rate`, `tokens_per_s`."""
    kind: str
    """`max_increase`, `max_decrease`, `max` or `min`."""
    amount: float
    unit: str
    """`%`, `ms` or `/s`."""
    written: str
    """As it was written: `short/ttft_ms.p99 max_increase 10%`."""


def parse_amount(amount: Amount) -> tuple[float, str]:
    """(number, unit): `%`, `ms` (seconds and microseconds become ms), `/s`, or empty. ValueError if it is none."""
    if isinstance(amount, int | float):
        return float(amount), ""
    found = _PARTS.match(amount.strip())
    if found is None:
        raise ValueError(f"{amount!r} is no amount such as 10%, 500ms, 2s or 20/s")
    number, unit = float(found[1]), found[2] or ""
    if unit in _MS:
        return number * _MS[unit], "ms"
    return number, unit


_EXAMPLE: Final = "For example:  ttft_ms.p99: {max_increase: 10%, max: 500ms}"


def rules_from(data: Any, place: str) -> list[Rule]:
    """The rules in a parsed file (`yaml.safe_load`). InputError names file, key and what may stand there."""
    if not isinstance(data, dict) or not data:
        raise InputError("it holds no rules: a map of metric to limits is wanted", place=place, remedy=_EXAMPLE)
    out: list[Rule] = []
    for name, value in data.items():
        if name == "classes":
            if not isinstance(value, dict):
                raise InputError("wanted: class -> metric -> limits", place=f"{place}: classes", remedy=_EXAMPLE)
            for scope, inside in value.items():
                if not isinstance(inside, dict):
                    raise InputError("wanted: metric -> limits", place=f"{place}: classes.{scope}", remedy=_EXAMPLE)
                for metric, limits in inside.items():
                    out += _rules(str(scope), str(metric), limits, f"{place}: classes.{scope}")
            continue
        scope, _, metric = str(name).rpartition("/")
        out += _rules(scope, metric, value, place)
    if not out:
        raise InputError("it holds no rules: its classes are empty", place=place, remedy=_EXAMPLE)
    return out


def _rules(scope: str, metric: str, limits: Any, place: str) -> list[Rule]:
    if not _NAME.fullmatch(metric):
        raise InputError(
            f"there is no metric {metric!r}",
            place=place,
            remedy="Metrics are longest_wait_ms, ttft_ms, longest_gap_ms, chunk_gap_ms, tpot_ms and e2e_ms, each with "
            f".p50, .p90, .p95, .p99 or .max, then {ERROR_RATE}, {', '.join(RATES)}.",
        )
    where = f"{place}: {metric}" if scope == "" or "classes." in place else f"{place}: {scope}/{metric}"
    if scope and not re.fullmatch(_LATENCY, metric):
        raise InputError("it is known of all requests together only", place=where, remedy="Write it at the top.")
    try:
        limit = msgspec.convert(limits, Limit)
    except msgspec.ValidationError as error:
        raise InputError(str(error), place=where, remedy=_EXAMPLE) from None
    out = []
    for kind in limit.__struct_fields__:
        amount = getattr(limit, kind)
        if amount is None:
            continue
        number, unit = parse_amount(amount)
        unit = _unit(metric, kind, unit, where)
        name = f"{scope}/{metric}" if scope else metric
        out.append(
            Rule(scope=scope, metric=metric, kind=kind, amount=number, unit=unit, written=f"{name} {kind} {amount}")
        )
    if not out:
        raise InputError("it sets no limit", place=where, remedy=_EXAMPLE)
    return out


def _unit(metric: str, kind: str, unit: str, where: str) -> str:
    """The unit of an amount, or of a bare number; InputError for one that does not fit the metric."""
    own = "%" if metric == ERROR_RATE else "/s" if metric in RATES else "ms"
    relative = kind in ("max_increase", "max_decrease")
    if not unit:
        if relative and own != "%":
            raise InputError(f"{kind} needs a unit", place=where, remedy=f"Write 10% or 50{own}.")
        return own
    if unit == own or (relative and unit == "%"):
        return unit
    raise InputError(
        f"{unit} does not fit {metric}", place=where, remedy=f"Use {own}" + (" or %." if relative else ".")
    )


def rules_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a file of rules, for editors."""
    limit = msgspec.json.schema(Limit)
    definitions = limit.pop("$defs", {})
    metric = {"$ref": "#/$defs/Limit"}
    latency = {f"^{_LATENCY}$": metric}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Rules of tailrace compare",
        "type": "object",
        "properties": {
            ERROR_RATE: metric,
            **dict.fromkeys(RATES, metric),
            "classes": {
                "type": "object",
                "additionalProperties": {"type": "object", "patternProperties": latency, "additionalProperties": False},
            },
        },
        "patternProperties": {rf"^([^/]+/)?{_LATENCY}$": metric},
        "additionalProperties": False,
        "$defs": definitions,
    }
