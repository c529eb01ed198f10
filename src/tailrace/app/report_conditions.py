"""The report's account of what was run, against what, and by whom; what nobody knows is marked unknown."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from tailrace.app.report_markup import Cell, card, facts, text
from tailrace.model.conditions import Conditions
from tailrace.model.measurement import ClientHealth
from tailrace.store.run_arrival import arrival_words
from tailrace.store.run_file import Run

__all__ = ["client_banner", "conditions_card", "load_words", "problem_banner"]

UNKNOWN: Final = Cell('<span class="unknown">unknown</span>')
_GIB: Final = 1 << 30
_FEW_FLAGS: Final = 8
_CLASS_KEYS: Final = {"traits": "with", "correlation": "correlation of both"}
_GRANULARITY: Final = {
    "chunk": "the time of each chunk of a stream, without its tokens",
    "mean": "no times within a stream, means only",
    "aggregate": "percentiles of all requests together, no request",
}


def load_words(run: Run) -> str:
    """How requests were sent, in a few words."""
    return "as its users sent it" if run.header.kind == "gateway" else arrival_words(run.header.arrival)


def client_banner(run: Run, client: ClientHealth) -> Cell:
    """Whether the numbers are the server's: the first thing on the page."""
    if run.header.kind == "gateway":
        return Cell("")
    if client.limited:
        why = text(client.why[:1].upper() + client.why[1:])
        return Cell(
            '<div class="lost" role="alert">Client limited: these numbers are the load generator\'s, not the '
            f"server's, and no verdict may rest on them. {why}. Give it more cores or processes, or less load.</div>"
        )
    if run.header.kind == "simulate":
        return Cell('<p class="banner">Simulated in virtual time: no client and no network took part.</p>')
    known = _health(client)
    if run.trailer is None or (run.header.source != "tailrace" and not known):
        return Cell(
            '<p class="banner doubt">Whether the load generator was the limit is <b>unknown</b>: '
            f"{text('the run was cut' if run.header.source == 'tailrace' else 'its source does not say')}.</p>"
        )
    return Cell(f'<p class="banner">The load generator kept up: {text(known or "it saw no limit of its own")}.</p>')


def _health(client: ClientHealth) -> str:
    parts = [
        f"event loop {client.loop_lag_p99_ms:.1f} ms late at p99" if client.loop_lag_p99_ms is not None else "",
        f"sends {client.late_send_p99_ms:.1f} ms late at p99" if client.late_send_p99_ms is not None else "",
        f"{client.cpu_share:.0%} of a core" if client.cpu_share is not None else "",
        f"waited for a processor {client.run_queue_wait_share:.0%} of the time"
        if client.run_queue_wait_share is not None
        else "",
    ]
    return ", ".join(part for part in parts if part)


def problem_banner(run: Run) -> Cell:
    """What is wrong with the file, and what was left out of it."""
    if run.problem:
        return Cell(f'<div class="lost" role="alert">Part of a run only: {text(run.problem)}.</div>')
    if run.trailer is not None and run.trailer.interrupted:
        return Cell('<p class="banner doubt">The run was interrupted: this is what had been measured.</p>')
    return Cell("")


def conditions_card(run: Run) -> Cell:
    """Everything that another run must share to be comparable."""
    header, known = run.header, run.header.conditions
    rows: list[tuple[str, object | None]] = [
        ("target", header.target or None),
        ("model", known.model or header.model or None),
        ("model revision", known.model_revision),
        ("engine", _joined(known.engine, known.engine_version)),
        ("server header", known.server),
        ("dtype", known.dtype),
        ("quantisation", known.quantization),
        ("GPU", _gpus(known)),
        ("GPU memory", f"{known.gpu_memory_bytes / _GIB:,.1f} GiB" if known.gpu_memory_bytes else None),
        ("load", load_words(run)),
        ("mix", header.mix or None),
        ("classes", _classes(header.classes)),
        ("prompts", known.prompts),
        ("warm-up", known.warmup),
        ("seed", header.arrival.seed),
        ("measured by", known.tool or (f"{header.source} {header.version}".strip())),
        ("its machine", _pairs(known.host)),
        ("command", known.command),
        ("started", _moment(header.started_unix_ns)),
    ]
    if header.granularity != "event":
        rows.append(("granularity", _GRANULARITY.get(header.granularity, header.granularity)))
    if header.absent:
        rows.append(("absent", f"not in the results of {header.source}: {', '.join(header.absent)}"))
    body = facts((name, UNKNOWN if value is None else value) for name, value in rows)
    notes = [*header.notes, *(run.trailer.notes if run.trailer else ())]
    flags = {**header.knobs, **known.engine_flags}
    return card("Conditions", "What was run", f"{body}{_flags(flags)}{_notes(notes)}")


def _flags(flags: Mapping[str, Any]) -> str:
    if not flags:
        return f'<p class="aside">Engine settings: {UNKNOWN}</p>'
    body = facts(sorted(flags.items()), 200)
    opened = " open" if len(flags) <= _FEW_FLAGS else ""
    return f"<details{opened}><summary>Engine settings ({len(flags)})</summary>{body}</details>"


def _notes(notes: list[str]) -> str:
    return f"<ul class=notes>{''.join(f'<li>{text(note)}</li>' for note in notes)}</ul>" if notes else ""


def _joined(*parts: str | None) -> str | None:
    return " ".join(part for part in parts if part) or None


def _gpus(known: Conditions) -> str | None:
    if known.gpu is None:
        return None
    counted = {name: known.gpu.count(name) for name in dict.fromkeys(known.gpu)}
    return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in counted.items()) or "none"


def _pairs(facts: Mapping[str, Any]) -> str | None:
    out = []
    for name, value in facts.items():
        if name.endswith("_bytes") and isinstance(value, int | float):
            out.append(f"{name.removesuffix('_bytes')} {value / _GIB:,.1f} GiB")
        else:
            out.append(f"{name} {value}")
    return ", ".join(out) or None


def _classes(classes: Mapping[str, Any]) -> str | None:
    out = []
    for name, known in classes.items():
        if isinstance(known, Mapping):
            shown = ", ".join(
                f"{_CLASS_KEYS.get(key, key)} {_plain(value)}"
                for key, value in known.items()
                if value not in (None, "", 0.0)
            )
            out.append(f"{name} ({shown})")
        else:
            out.append(str(name))
    return "; ".join(out) or None


def _plain(value: object) -> str:
    """A length as it is typed (`300`, `200-400`, `300~0.5`), a rule by its fields, a list one by one."""
    if isinstance(value, list):
        return " and ".join(_plain(one) for one in value)
    if not isinstance(value, Mapping):
        return str(value)
    match value:
        case {"type": "fixed", "tokens": tokens}:
            return str(tokens)
        case {"type": "uniform", "low": low, "high": high}:
            return f"{low}-{high}"
        case {"type": "lognormal", "median": median, "sigma": sigma, "low": low, "high": high}:
            return f"{median}~{sigma} within {low}-{high}"
    shown = {key: one for key, one in value.items() if one not in (None, "", [], {})}
    return ", ".join(f"{key.replace('_', ' ')} {_plain(one)}" for key, one in shown.items())


def _moment(unix_ns: int) -> str | None:
    if not unix_ns:
        return None
    return dt.datetime.fromtimestamp(unix_ns / 1e9, tz=dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
