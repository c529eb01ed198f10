"""What an engine still does so long after a client left, from a table or a form."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.diagnose.arm_evidence.client_left import left_setting
from tailrace.diagnose.arms.asked import as_share, told
from tailrace.diagnose.arms.pairs import change_shown, changed
from tailrace.diagnose.arms.shown import number
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Evidence, Finding, Level, Proof

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["CANCEL_ADVICE", "CANCEL_PRICE", "CANCEL_VERIFY", "cancel_in_arms"]

CANCEL_ADVICE: Final = (
    "Pass the request's id from the closed socket to the engine's abort (watch for the disconnect in every layer: "
    "proxy, "
    "server, engine), also for requests that do not stream. Keep it as an acceptance test: GPU utilisation and running "
    "requests are back to 0 about 1 s after the client leaves."
)
CANCEL_PRICE: Final = "None; an answer that nobody reads is not computed."
CANCEL_VERIFY: Final = (
    "tailrace bench http://localhost:8000 --cancel after-tokens:5 --output-tokens 900 "
    "--duration 60 --out cancelled.run && tailrace diagnose cancelled.run  # the engine's "
    "running requests must fall within 1 s"
)
BUSY: Final = 0.2
TOO_LONG_S: Final = 1.0
_AFTER: Final = re.compile(
    r"(?:after|post|since)[ _](?:the )?(?:client'?s? )?(?:disconnect|cancel|abort|clos|hang|kill|left|leav|drop|gone|"
    r"ctrl)|"
    r"(?:disconnect|cancel|abort|hang.?up)\w*[ _](?:\+|plus)|client (?:gone|left|killed)",
    re.IGNORECASE,
)
_LATER: Final = re.compile(r"\bafter \d+ ?s|\bafter$|\blater$|\d+ ?s (?:after|later)", re.IGNORECASE)
_SECONDS: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:s|sec|seconds)\b", re.IGNORECASE)


class _Still(NamedTuple):
    """One number after the disconnect."""

    arm: str
    kind: str
    """`gpu`, `running`, `tokens`."""
    words: str
    value: float
    """Share, count or tokens."""
    after_s: float | None
    source: str

    @property
    def goes_on(self) -> bool:
        return self.value > (BUSY if self.kind == "gpu" else 0.0)

    @property
    def shown(self) -> str:
        return f"{self.words}: {number(self.value, 'share' if self.kind == 'gpu' else 'count')}"


def cancel_in_arms(cause: Cause, observed: Observed) -> Finding | None:
    """Numbers whose heading says that they were taken after the client left."""
    seen = [*_in_arms(observed), *_in_settings(observed)]
    late = [item for item in seen if item.after_s is None or item.after_s >= TOO_LONG_S]
    going = [item for item in late if item.goes_on]
    if not going:
        return None
    worst = {item.arm for item in going}
    stopped = [item for item in late if item.arm not in worst and not item.goes_on]
    running = [item.value for item in going if item.kind == "running"]
    missing = []
    if all(item.after_s is None for item in going):
        missing.append("how long after the disconnect the number was taken")
    if not stopped and not running:
        missing.append("running requests of the engine, to see that no other work keeps it busy")
    alone = observed.number("client_connections_open_at_end") == 0
    rivals = ["other requests keep it busy"] if running and min(running) > 1 and not stopped and not alone else []
    first = going[0]
    after = f"{first.after_s:g} s after" if first.after_s is not None else "after"
    statement = f"The engine goes on {after} the client has left: " + "; ".join(f"{item.shown}" for item in going)
    if stopped:
        statement += f" ({stopped[0].arm}: {'; '.join(item.shown for item in stopped)})"
    changed_ = changed(observed)
    return cause.finding(
        statement=statement + ". The cancel does not reach the engine, and the answer is computed for nobody.",
        evidence=[
            *(
                Evidence(
                    text=f"{item.arm}: {item.shown}".removeprefix(": "),
                    source=item.source,
                    name=item.kind,
                    value=item.value,
                    unit="share" if item.kind == "gpu" else "",
                )
                for item in (*going, *stopped)
            ),
            *([Evidence(f"taken {first.after_s:g} s after the disconnect", first.source)] if first.after_s else []),
            *change_shown(observed),
        ],
        explains_ms=None,
        relation="; ".join(
            f"{item.arm} {number(item.value, 'share' if item.kind == 'gpu' else 'count')}".strip()
            for item in (*going, *stopped)
        )
        + f" {after} the disconnect; 0 is right",
        n=len(late),
        advice=CANCEL_ADVICE,
        price=CANCEL_PRICE,
        verify=CANCEL_VERIFY,
        missing=missing,
        rivals=rivals,
        disproof_checked=[
            f"in {stopped[0].arm} the same test ends at {stopped[0].shown}"
            if stopped
            else "there is no arm in which it stops",
            *([f"{number(max(running))} running"] if running else []),
        ],
        level=Level.PROVEN if stopped and changed_ and not missing else None,
        proof=Proof.ONE_CHANGE,
    )


def _kind(words: str) -> str:
    if re.search(r"gpu|util|device", words, re.IGNORECASE):
        return "gpu"
    if re.search(r"running|in.?flight|active|batch", words, re.IGNORECASE):
        return "running"
    return "tokens" if re.search(r"token", words, re.IGNORECASE) else ""


def _in_arms(observed: Observed) -> list[_Still]:
    out = []
    for arm in observed.arms:
        for value in arm.values.values():
            words = f"{value.label} {value.qualifier}".replace("_", " ")
            kind = _kind(words)
            corner = next(
                (f"{name.replace('_', ' ')} {said}" for name, said in arm.keys.items() if said == arm.label), ""
            )
            if value.relative or not kind:
                continue
            if not _AFTER.search(words):
                if not _AFTER.search(corner):
                    continue
                words = f"{words} {corner}"
            share = as_share(value.value, value.unit) if kind == "gpu" else value.value
            seconds = _SECONDS.search(words)
            out.append(
                _Still(
                    arm.label or arm.name, kind, "GPU utilisation" if kind == "gpu" else f"{kind}", share,
                    None if seconds is None else float(seconds[1]), str(value.place) or "form",
                )
            )  # fmt: skip
    return out


def _in_settings(observed: Observed) -> list[_Still]:
    out = []
    # Where a form says when the client was killed, `running_after_30_s` counts from there.
    late = _LATER if left_setting(observed) is not None else _AFTER
    for item in told(observed):
        words = item.name.replace("_", " ")
        kind = _kind(words)
        if item.number is None or not kind or not (_AFTER.search(words) or late.search(words)):
            continue
        share = as_share(item.number, item.unit) if kind == "gpu" else item.number
        seconds = _SECONDS.search(words)
        told_after = next(
            (
                one.number
                for one in told(observed)
                if re.search(r"(?:seconds|s) after|after s$", one.name.replace("_", " "))
            ),
            None,
        )
        out.append(
            _Still(
                "", kind, "GPU utilisation" if kind == "gpu" else kind, share,
                float(seconds[1]) if seconds is not None else told_after, str(item.place) or "form",
            )
        )  # fmt: skip
    return out
