"""Rows of requests as records, so that the rules on records judge them too."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Arm, Clock, Observed, Role, Rows
from tailrace.diagnose.readers.roles import with_roles
from tailrace.diagnose.readers.told_request import reason_of
from tailrace.model.outcome import REASON_KIND, Reason
from tailrace.model.stage import SourceKind, source
from tailrace.store.table import FIELDS, RecordTable, column_of, default_of

__all__ = ["LEAST_ROWS", "table_of_requests", "windows_of_requests"]

Floats = NDArray[np.float64]
LEAST_ROWS: Final = 20
"""Below that, no rule on records concludes anything."""
ROUNDED_NS: Final = 1e6
ROUNDED: Final = 0.01
_STAGES: Final = ("queue", "preprocess", "encode", "prefill", "decode", "postprocess")
_REASONS: Final = {"ok": Reason.NONE, "timeout": Reason.TOTAL_TIMEOUT, "cancelled": Reason.CLIENT_DISCONNECT}
_REPORTED: Final = source(SourceKind.REPORTED, "requests")
_REMAINDER: Final = source(SourceKind.INFERRED, "remainder")


def table_of_requests(observed: Observed) -> RecordTable | None:
    """The records of all tables of requests in it; `None` where stamps or rows are too few, or where the rows are of
    several arms: two conditions are no window.
    """
    usable = [rows for rows in observed.table("requests") if rows.has("t_send_ms") and rows.has("e2e_ms")]
    if sum(len(rows) for rows in usable) < LEAST_ROWS:
        return None
    if len({arm for rows in usable for arm in rows.texts("arm")}) > 1:
        return None
    return RecordTable.concat([_table(rows) for rows in usable])


def windows_of_requests(observed: Observed) -> tuple[RecordTable, RecordTable] | None:
    """(records from before, records from after) where the rows are of two arms, or two files, whose names tell which
    is which; `None` otherwise, and where one of them has too few rows.
    """
    usable = [rows for rows in observed.table("requests") if rows.has("t_send_ms") and rows.has("e2e_ms")]
    arms: dict[str, int] = {}
    for rows in usable:
        for arm, n in Counter(rows.texts("arm")).items():
            name = arm or Path(rows.place.source).stem
            arms[name] = arms.get(name, 0) + n
    if len(arms) != 2 or min(arms.values()) < LEAST_ROWS:
        return None
    roles = {arm.role: arm.name for arm in with_roles([Arm(name=name, label=name) for name in arms])}
    if set(roles) != {Role.BEFORE, Role.AFTER}:
        return None
    parts: dict[str, list[RecordTable]] = {}
    for rows in usable:
        table = _table(rows)
        for arm, members in rows.members("arm").items():
            mask = np.zeros(len(rows), dtype=bool)
            mask[members] = True
            parts.setdefault(arm or Path(rows.place.source).stem, []).append(table.where(mask))
    before, after = (RecordTable.concat(parts[roles[role]]) for role in (Role.BEFORE, Role.AFTER))
    return before, after


def _table(rows: Rows) -> RecordTable:
    n = len(rows)
    send, first, last = (rows.numbers(name) for name in ("t_send_ms", "t_first_ms", "t_last_ms"))
    if rows.clock is Clock.RELATIVE:
        known = send[np.isfinite(send)]
        send, first, last = (values - (float(known.min()) if known.size else 0.0) for values in (send, first, last))
    placed = np.isfinite(send)
    end = np.where(np.isfinite(last), last, np.where(np.isfinite(first), first, send))
    e2e = _ns(np.where(placed, end - send, 0.0))
    ttft = _maybe_ns(first - send)
    last_token = _maybe_ns(last - send)
    ok = np.array([status == "ok" for status in rows.texts("status")], dtype=bool)
    reasons = _reasons(rows)
    intended = rows.numbers("t_intended_ms")
    if rows.clock is Clock.RELATIVE and rows.has("t_intended_ms"):
        raw = rows.numbers("t_send_ms")
        intended = intended + (send - raw)
    started = np.where(np.isfinite(intended), intended, send)
    output = rows.numbers("usage_completion_tokens")
    output = np.where(np.isfinite(output), output, rows.numbers("output_tokens"))
    with np.errstate(invalid="ignore", divide="ignore"):
        several = ok & (output > 1) & np.isfinite(first) & (last > first)
        tpot = np.where(several, (last - first) / (output - 1), np.nan)
    stages, sources = _stages(rows, e2e, ttft, last_token)
    columns: dict[str, Any] = {name: column_of(name, default_of(name), n) for name in FIELDS if name not in _SET}
    columns |= stages
    columns |= {
        "vantage": _texts(["client"] * n),
        "request_id": _texts([name or str(at) for at, name in enumerate(rows.texts("id"))]),
        "session_id": _texts(rows.texts("session_id")),
        "lane": _texts([group or "default" for group in rows.texts("group")]),
        "backend": _texts(rows.texts("replica")),
        "prompt_tokens": rows.numbers("prompt_tokens"),
        "cached_tokens": rows.numbers("cached_tokens"),
        "output_tokens": output,
        "running_at_admission": rows.numbers("engine_running"),
        "waiting_at_admission": rows.numbers("engine_waiting"),
        "start_unix_ns": _ns(np.where(placed, send, 0.0)),
        "run_offset_ns": _maybe_ns(started - float(np.nanmin(started)) if np.isfinite(started).any() else started),
        "intended_to_sent_ns": _maybe_ns(send - intended),
        "e2e_ns": e2e,
        "e2e_last_token_ns": last_token,
        "ttft_ns": ttft,
        "tpot_ns": _maybe_ns(tpot),
        "outcome": _texts([REASON_KIND[reason].value for reason in reasons]),
        "reason": _texts([reason.value for reason in reasons]),
        "http_status": rows.numbers("http_status"),
        "grammar": _grammar(rows),
        "client_request_id": _texts(_wanted(rows)),
        "stage_sources": sources,
    }
    return RecordTable({name: columns[name] for name in FIELDS})


_SET: Final = frozenset(
    {
        *("vantage", "request_id", "session_id", "lane", "backend", "prompt_tokens", "cached_tokens", "output_tokens"),
        *("running_at_admission", "waiting_at_admission", "start_unix_ns", "run_offset_ns", "intended_to_sent_ns"),
        *("e2e_ns", "e2e_last_token_ns", "ttft_ns", "tpot_ns", "outcome", "reason", "http_status", "grammar"),
        "stage_sources",
        "client_request_id",
    }
)
_NO_GRAMMAR: Final = frozenset({"", "-", "0", "no", "off", "none", "null", "nan", "false", "text", "plain", "free"})
_GRAMMAR: Final = re.compile(r"grammar|schema|structured|guided|json|regex|tool", re.IGNORECASE)


def _grammar(rows: Rows) -> NDArray[np.bool_]:
    """Which rows ask for a form: by a column of that, else by what their class is called."""
    if rows.has("grammar"):
        if rows.columns["grammar"].dtype == object:
            return np.array([said.strip().lower() not in _NO_GRAMMAR for said in rows.texts("grammar")], dtype=bool)
        return np.nan_to_num(rows.numbers("grammar"), nan=0.0) > 0
    named = np.array([_GRAMMAR.search(group) is not None for group in rows.texts("group")], dtype=bool)
    return named if not named.all() else np.zeros(len(rows), dtype=bool)


def _wanted(rows: Rows) -> list[str]:
    """What a client wanted once, however often it was sent: repeats name the first attempt."""
    again = rows.texts("retry_of")
    if not any(again):
        return [""] * len(rows)
    ids = rows.texts("id")
    first = dict(zip(ids, again, strict=True))
    out = []
    for name in ids:
        seen = {name}
        while first.get(name) and first[name] not in seen:
            name = first[name]  # noqa: PLW2901
            seen.add(name)
        out.append(name)
    return out


def _reasons(rows: Rows) -> list[Reason]:
    codes = rows.numbers("http_status")
    return [
        _REASONS[status] if status in _REASONS else reason_of(error, None if np.isnan(code) else int(code))
        for status, error, code in zip(rows.texts("status"), rows.texts("error"), codes, strict=True)
    ]


def _stages(
    rows: Rows, e2e: NDArray[np.int64], ttft: Floats, last: Floats
) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
    """Stages that add up to the end, and where they are from. What the table tells is kept if it fits into the whole;
    otherwise the stamps alone split it.
    """
    told = {name: _maybe_ns(rows.numbers(f"{name}_ms")) for name in _STAGES if rows.has(f"{name}_ms")}
    total = np.zeros(len(rows))
    for values in told.values():
        total += np.nan_to_num(values, nan=0.0)
    fits = (total <= e2e + np.maximum(ROUNDED_NS, ROUNDED * e2e)) if told else np.zeros(len(rows), dtype=bool)
    # Written with other digits than the stamps, they may add up to a little more than the whole.
    part = np.where(total > e2e, e2e / np.maximum(total, 1.0), 1.0)
    out: dict[str, NDArray[Any]] = {
        name: np.where(fits, np.floor(values * part), np.nan) for name, values in told.items()
    }
    split = ~fits & np.isfinite(ttft) & np.isfinite(last) & (last >= ttft) & (ttft >= 0)
    decode = np.where(split, last - ttft, out.get("decode", np.full(len(rows), np.nan)))
    out["decode"] = decode
    whole = np.zeros(len(rows))
    for values in out.values():
        whole += np.nan_to_num(values, nan=0.0)
    columns = {f"{name}_ns": values for name, values in out.items()}
    columns["unattributed_ns"] = e2e - whole
    if "queue" in told:
        columns["queue_engine_ns"] = columns["queue_ns"]
    sources = np.empty(len(rows), dtype=object)
    known = zip(*((~np.isnan(values)).tolist() for values in out.values()), strict=True)
    sources[:] = [
        dict.fromkeys(itertools.compress(out, row), _REPORTED) | {"unattributed": _REMAINDER} for row in known
    ]
    return columns, sources


def _ns(values: Floats) -> NDArray[np.int64]:
    whole: NDArray[np.int64] = np.clip(np.nan_to_num(np.round(values * 1e6), nan=0.0), -4e18, 4e18).astype(np.int64)
    return whole


def _maybe_ns(values: Floats) -> Floats:
    rounded: Floats = np.where(np.isfinite(values), np.round(values * 1e6), np.nan)
    return rounded


def _texts(values: list[str]) -> NDArray[Any]:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out
