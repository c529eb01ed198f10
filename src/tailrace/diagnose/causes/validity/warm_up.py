"""METRIC_WARM_UP: the window holds the start, in which everything was slow, and the load after it."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from tailrace.diagnose.arms.as_written import shown
from tailrace.diagnose.arms.moments import moments
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Arm, Observed
from tailrace.diagnose.observed.load import Load, loads
from tailrace.diagnose.record_evidence.warm_start import BEGIN_S, WarmStart, warm_start
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["WarmUp"]

LOW: Final = 0.5
"""Tokens/s of one running request at the start, of what it is later."""
READINGS: Final = 6
WINDOWS: Final = 3
SLOW: Final = 3.0
ALIKE: Final = 2.0
_STARTING: Final = ("jit", "loading", "startup", "compile", "graph_capture")
_ADVICE: Final = (
    "Judge the steady part alone: leave out the first minute (`tailrace bench --warmup`), or warm the engine up before "
    "traffic comes (one request of each shape), and give the window without its start."
)


class WarmUp(Cause):
    """The beginning of the window is far slower than the rest, and makes its tail."""

    code: ClassVar[str] = "METRIC_WARM_UP"
    stage: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ("the requests, or the engine's readings, over time", "when the engine started")
    disproof: ClassVar[str] = "The same slow minute comes again later in the window."
    action: ClassVar[Action] = Action.COLLECT
    beside: ClassVar[bool] = True

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """TTFT of the first minute against the rest."""
        window = evidence.now
        found = warm_start(window.start / 1e9, window.done.ms("ttft")) if window.n else None
        return None if found is None else self._of_requests(found, "record:ttft_ns", evidence.verify_command)

    def observe(self, observed: Observed) -> Finding | None:
        """Rates of a log or of scrapes at the start against later, with what the log says of loading and compiling."""
        found = next((found for load in loads(observed) if (found := self._of_load(load, observed)) is not None), None)
        return found or self._of_windows(moments(observed))

    def _of_windows(self, windows: list[Arm]) -> Finding | None:
        """A table of windows: the first one is slow, and none of those after it."""
        for stat in ("p99", "p95", "p50", "mean", ""):
            known = [(arm, item) for arm in windows if (item := arm.quoted("ttft", stat)) is not None]
            if len(known) < WINDOWS or known[0][1].unit != "ms":
                continue
            first, rest = known[0][1].value, [item.value for _, item in known[1:]]
            if max(rest) > ALIKE * max(min(rest), 1e-9) or first < SLOW * max(rest):
                return None
            return self.finding(
                statement=f"The first window is a warm-up: TTFT {stat} {shown(first)} ms there, "
                f"{shown(min(rest))} to {shown(max(rest))} ms in the {len(rest)} after it. A quantile over all of them "
                "holds for the start.",
                evidence=[
                    Evidence(text=f"{arm.label}: TTFT {stat} {shown(item.value)} ms", source=str(item.place),
                             name=item.key, value=item.value, unit="ms")
                    for arm, item in known[:12]
                ],
                explains_ms=None,
                relation=f"{shown(first)}/{shown(max(rest))} = {first / max(*rest, 1e-9):.1f}",
                n=len(known),
                advice=_ADVICE,
                price="A minute of load more.",
                verify="tailrace bench http://localhost:8000 --rate 5 --duration 120",
                missing=["when the engine was started: a burst of load at the beginning looks alike"],
            )  # fmt: skip
        return None

    def _of_requests(self, found: WarmStart, source: str, verify: str) -> Finding:
        p = f"p{100 * found.p:g}"
        return self.finding(
            statement=f"The first {found.until_s:.0f} s are a warm-up: TTFT p50 {shown(round(found.first_ms, 1))} ms "
            f"there (n = {found.n_first}), {shown(round(found.rest_ms, 1))} ms after (n = {found.n_rest}). {p} is "
            f"{shown(round(found.tail_ms, 1))} ms with the start and {shown(round(found.steady_ms, 1))} ms without: "
            "what is said of the tail below holds for the start, not for the load.",
            evidence=[
                Evidence(
                    text=f"TTFT p50 {shown(round(found.first_ms, 1))} ms in the first {found.until_s:.0f} s "
                    f"(n = {found.n_first}), {shown(round(found.rest_ms, 1))} ms after (n = {found.n_rest})",
                    source=source, name="ttft.p50", value=round(found.first_ms, 1), unit="ms",
                ),
                Evidence(
                    text=f"TTFT {p} {shown(round(found.tail_ms, 1))} ms with the start, "
                    f"{shown(round(found.steady_ms, 1))} ms without", source=source, name=f"ttft.{p}",
                    value=round(found.steady_ms, 1), unit="ms",
                ),
            ],
            explains_ms=None,
            relation=f"{shown(round(found.first_ms, 1))}/{shown(round(found.rest_ms, 1))} = "
            f"{found.first_ms / found.rest_ms:.1f}",
            n=found.n_first + found.n_rest,
            advice=_ADVICE,
            price="A minute of load more.",
            verify=verify,
            missing=["when the engine was started: a burst of load at the beginning looks alike"],
        )  # fmt: skip

    def _of_load(self, load: Load, observed: Observed) -> Finding | None:
        if not load.timed or not load.has("output_tok_s"):
            return None
        rate = load.rate
        busy = np.flatnonzero(np.isfinite(rate) & (load.get("running") > 0))
        if busy.size < READINGS + 2:
            return None
        at, rates = load.at[busy] - float(load.at[busy[0]]), rate[busy]
        first, rest = rates[at < BEGIN_S], rates[at >= BEGIN_S]
        if not first.size or rest.size < READINGS or first.size > rest.size:
            return None
        usual = float(np.median(rest))
        # A low rate that comes back is the system's, not the start's.
        if float(np.median(first)) >= LOW * usual or float(rest.min()) < LOW * usual:
            return None
        end = float(load.at[busy[0]]) + BEGIN_S
        begun = [
            event
            for kind in _STARTING
            for event in observed.of_kind(kind)
            if event.at is not None and event.clock == load.clock and event.at <= end
        ]
        low = f"{shown(round(float(np.median(first)), 2))} tok/s"
        high = f"{shown(round(usual, 2))} tok/s"
        evidence = [
            Evidence(
                text=f"{low} a running request in the first {BEGIN_S:.0f} s ({first.size} readings), {high} after "
                f"({rest.size} readings)",
                source=load.where(int(busy[0])), name="output_tok_s", value=float(np.median(first)), unit="tok/s",
            )
        ]  # fmt: skip
        evidence += [Evidence(text=event.text[:160], source=str(event.place), name=event.kind) for event in begun[:3]]
        return self.finding(
            statement=f"The first {BEGIN_S:.0f} s are a warm-up: a running request makes {low} there and {high} after. "
            "The window mixes both: what is said of its tail holds for the start.",
            evidence=evidence,
            explains_ms=None,
            relation=f"{low} / {high} = {float(np.median(first)) / usual:.2f} < {LOW:g} at the start only",
            n=int(busy.size),
            advice=_ADVICE,
            price="A minute of load more.",
            verify="tailrace bench http://localhost:8000 --rate 5 --duration 120",
            missing=[] if begun else ["the engine's lines of loading and compiling from that minute"],
            level=Level.CONSISTENT if begun else Level.SUSPECTED,
        )
