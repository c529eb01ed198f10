"""CANCEL_UNATTRIBUTED: requests leave the engine and no line says why."""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Event, Observed
from tailrace.diagnose.observed.load import loads
from tailrace.diagnose.verdict import rank
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["CancelUnattributed"]

_GENERATES: Final = (
    "completions",
    "/generate",
    "/messages",
    "/responses",
    "/infer",
    "/transcriptions",
    "/speech",
    "/embeddings",
)
SILENT: Final = 0.1
"""Share of the answers begun that have no end, from which it is no cut of the log at its ends."""
FREED: Final = 0.02
MANY: Final = 2
NEARLY: Final = 0.8
"""Of the streams that were cut, so many must have left the engine between two readings."""


class _Begun(NamedTuple):
    requests: float
    place: str


class CancelUnattributed(Cause):
    """Answers that were begun and never ended; or running drops to 0 and KV is freed while clients still wait."""

    code: ClassVar[str] = "CANCEL_UNATTRIBUTED"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = (
        "access lines (written when an answer begins) beside the lines or records of ended requests",
        "or running requests and KV usage from the engine's log beside the clients' open connections",
    )
    disproof: ClassVar[str] = "An abort or finish line of these requests exists."
    action: ClassVar[Action] = Action.FIX

    def observe(self, observed: Observed) -> Finding | None:
        """By counts; else by the engine's gauges."""
        found = [one for one in (self._by_counts(observed), self._by_gauges(observed)) if one is not None]
        return rank(found)[0] if found else None

    def _by_counts(self, observed: Observed) -> Finding | None:
        begun, ended = _begun(observed), _ended(observed)
        if begun is None or ended is None:
            return None
        silent = begun.requests - ended.requests
        aborted = float(len(observed.of_kind("aborted")))
        silent -= aborted
        if silent < 1 or silent < SILENT * begun.requests:
            return None
        return self.finding(
            statement=f"{silent:g} of {begun.requests:g} answers that began with 200 have no end: no summary, "
            "no abort line. The "
            "client hung up (a disconnect), and nothing says so.",
            evidence=[
                Evidence(
                    text=f"{begun.requests:g} access lines with 200; such a line is written when the answer begins",
                    source=begun.place,
                    name="begun",
                    value=begun.requests,
                ),
                Evidence(f"{ended.requests:g} summaries of ended requests", ended.place, "ended", ended.requests),
                Evidence(f"{aborted:g} abort lines", begun.place, "aborted", aborted),
                Evidence(f"{silent:g} without any end: client hang-ups", begun.place, "silent", silent),
            ],
            explains_ms=None,
            relation=f"{begun.requests:g} - {ended.requests:g}"
            + (f" - {aborted:g}" if aborted else "")
            + f" = {silent:g} answers without summary",
            n=int(begun.requests),
            advice="Record who ended each stream: client_write_failed and upstream_read_failed are two reasons "
            "(the gateway "
            "keeps both). Switch request logging on (vLLM --enable-log-requests) so that aborts have a line. "
            "Look at when clients give up (their timeout) and whether they ask again: a repeated long prompt "
            "is computed again.",
            price="A line or two a request in the log.",
            verify=(
                "tailrace diagnose http://127.0.0.1:9480  # an hour after the engine was put behind `tailrace serve`"
            ),
            missing=["which side ended each of them: the gateway's record with its reason"],
            disproof_checked=[
                f"{aborted:g} abort lines" if aborted else "no abort line",
                "no finish line beyond the summaries",
            ],
        )

    def _by_gauges(self, observed: Observed) -> Finding | None:
        ends = [event for kind in ("aborted", "finished") for event in observed.of_kind(kind)]
        open_ = observed.number("client_connections_open_at_end", "connections_open", "client_connections_open")
        held = observed.number("hold_min", "client_hold_min", "held_min", "disconnects_at_min")
        words = observed.of_kind("disconnect")
        if ends or (not open_ and held is None and not words):
            return None
        for load in loads(observed):
            running, kv = load.get("running"), load.get("kv_usage")
            for index in range(1, len(load)):
                gone = float(running[index - 1] - running[index])
                # All of them, or as many at once as streams that a gateway saw cut.
                several = len(words) >= MANY and gone >= NEARLY * len(words)
                if not (running[index - 1] > 0 and (running[index] == 0 or several)):
                    continue
                freed = float(kv[index - 1] - kv[index]) if load.has("kv_usage") else 0.0
                if load.has("kv_usage") and freed < FREED * max(float(kv[index - 1]), 0.05):
                    continue
                who = _who(open_, held, words)
                left = float(running[index])
                return self.finding(
                    statement=f"{gone:g} requests left the engine without a line: running went from {gone + left:g} to "
                    f"{left:g}"
                    + (f" and KV usage from {kv[index - 1]:.1%} to {kv[index]:.1%}" if load.has("kv_usage") else "")
                    + f", no abort or finish line stands there, and {who}.",
                    evidence=[
                        Evidence(
                            text=f"running {gone + left:g} -> {left:g}"
                            + (f", KV usage {kv[index - 1]:.1%} -> {kv[index]:.1%}" if load.has("kv_usage") else ""),
                            source=f"{load.where(index - 1)} to {load.where(index)}",
                            name="running",
                            value=gone,
                        ),
                        Evidence(
                            who, "stated" if open_ or held is not None else str(words[0].place), "", open_ or held
                        ),
                        Evidence("0 abort or finish lines", load.place.source, "ends", 0.0),
                    ],
                    explains_ms=None if held is None else held * 6e4,
                    relation=f"running {gone + left:g} -> {left:g}, KV freed, 0 lines that say why"
                    + (f"; {len(words)} streams cut at the gateway" if words else ""),
                    n=1,
                    advice="Record both sides of each stream at the gateway: client_write_failed and "
                    "upstream_read_failed are two "
                    "causes, and a proxy's word (recovered from upstream disconnection) does not tell them "
                    "apart. Switch "
                    "request logging on in the engine (vLLM --enable-log-requests): abort lines are printed only then.",
                    price="A line or two a request in the log.",
                    verify=(
                        "tailrace diagnose http://127.0.0.1:9480  # an hour after the engine was put behind "
                        "`tailrace serve`"
                    ),
                    missing=["which side closed first: the gateway's record with its reason"],
                    disproof_checked=["no abort or finish line in the log"],
                )
        return None


def _who(open_: float | None, held: float | None, words: list[Event]) -> str:
    """What the other side says."""
    if open_:
        return f"{open_:g} client connections are still open at the end"
    if held is not None:
        return f"clients hold for {held:g} min"
    many = f" {len(words)} times" if len(words) > 1 else ""
    return f"the proxy only says “{words[0].text[:120]}”{many}, which does not tell which side closed"


def _begun(observed: Observed) -> _Begun | None:
    """Answers that an application server began. A proxy writes its line at the end: those lines say nothing here."""
    total, place = 0.0, ""
    for rows in observed.table("access"):
        if rows.has("e2e") or rows.has("upstream"):
            continue
        paths, status, method = rows.texts("path"), rows.numbers("status"), rows.texts("method")
        mine = [
            index
            for index in range(len(rows))
            if status[index] == 200 and method[index] == "POST" and any(word in paths[index] for word in _GENERATES)
        ]
        if mine:
            total += float(rows.counts()[mine].sum())
            place = place or str(rows.place)
    if total:
        return _Begun(total, place)
    stated = observed.setting("access_log_lines", "access_lines")
    return None if stated is None or stated.number is None else _Begun(stated.number, str(stated.place) or "stated")


def _ended(observed: Observed) -> _Begun | None:
    """Requests that have a summary: stated, finish lines of the engine, or the rows of a table of requests."""
    stated = observed.setting("summary_lines", "finished_requests", "completed_requests", "finish_lines")
    if stated is not None and stated.number is not None:
        return _Begun(stated.number, str(stated.place) or "stated")
    finished = observed.of_kind("finished")
    if finished:
        return _Begun(float(len(finished)), str(finished[0].place))
    return None
