"""An alert as its receivers want it: ours, Prometheus Alertmanager's (API v2), a Slack-compatible message.

Shapes: Alertmanager's `POST /api/v2/alerts` takes a list of `{labels, annotations, startsAt, endsAt, generatorURL}`;
an incoming webhook of Slack takes `{text, attachments}`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from tailrace.govern.burn_rate import Alert, State

__all__ = ["Said", "alertmanager", "slack", "tailrace_form"]

_COLOURS: Final = {"page": "#d32f2f", "ticket": "#f9a825", "notice": "#1976d2"}
_GOOD: Final = "#2e7d32"
_MOST_FINDINGS: Final = 3


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """An alert with what the receivers are told beside it."""

    alert: Alert
    began_unix_ns: int
    until_unix_ns: int
    """When it ended; for one that fires, how long this word is good for."""
    gateway: str
    """Which gateway says so: its admin address."""
    diagnosis: dict[str, Any] | None = None
    """Why, as `GET /diagnosis` has it; `None` where there was none in time."""


def tailrace_form(said: Said) -> dict[str, Any]:
    """Everything, durations in ms."""
    alert = msgspec.to_builtins(said.alert)
    alert["bound_ms"] = alert.pop("bound_ns") / 1e6
    del alert["began_ns"]
    return {
        "schema": 1,
        **alert,
        "began_unix_ms": said.began_unix_ns // 1_000_000,
        "gateway": said.gateway,
        "diagnosis": said.diagnosis,
    }


def alertmanager(said: Said) -> list[dict[str, Any]]:
    """One alert in a list. Its labels stay the same from the first word to the last, so that it is grouped as one."""
    alert = said.alert
    first = _first(said)
    annotations = {"summary": alert.text}
    if first is not None:
        annotations |= {
            "cause": first["code"],
            "layer": first["layer"],
            "level": first["level"],
            "description": first["statement"],
            "advice": first.get("advice", ""),
        }
    elif said.diagnosis is not None:
        annotations["description"] = said.diagnosis.get("summary", "")
    return [
        {
            "labels": {
                "alertname": "TailraceObjective",
                "severity": alert.severity,
                "lane": alert.lane,
                "objective": alert.objective,
                "rule": alert.rule,
                "gateway": said.gateway,
            },
            "annotations": {name: text for name, text in annotations.items() if text},
            "startsAt": _rfc3339(said.began_unix_ns),
            "endsAt": _rfc3339(said.until_unix_ns),
            "generatorURL": f"{said.gateway}/",
        }
    ]


def slack(said: Said) -> dict[str, Any]:
    """A message with one attachment: the cause, its evidence, the advice."""
    alert = said.alert
    word = "resolved" if alert.state is State.RESOLVED else alert.severity
    fields = [
        {
            "title": f"{finding['code']} ({finding['layer']}, {finding['level']})",
            "value": _escaped(f"{finding['statement']} {finding.get('advice', '')}".strip()),
            "short": False,
        }
        for finding in (said.diagnosis or {}).get("findings", [])[:_MOST_FINDINGS]
    ]
    if not fields and said.diagnosis is not None:
        fields.append({"title": "Diagnosis", "value": _escaped(said.diagnosis.get("summary", "")), "short": False})
    return {
        "text": _escaped(f"[{word}] {alert.text}"),
        "attachments": [
            {
                "color": _GOOD if alert.state is State.RESOLVED else _COLOURS.get(alert.severity, _COLOURS["page"]),
                "fallback": _escaped(alert.text),
                "fields": fields,
                "footer": f"tailrace {said.gateway}",
                "ts": said.began_unix_ns // 1_000_000_000,
            }
        ],
    }


def _first(said: Said) -> dict[str, Any] | None:
    return next(iter((said.diagnosis or {}).get("findings", [])), None)


def _escaped(text: str) -> str:
    """Slack reads `<…>` as links and mentions: nothing of a request may become one."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _rfc3339(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
