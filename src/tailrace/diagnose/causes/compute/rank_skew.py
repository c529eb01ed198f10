"""COMPUTE_RANK_SKEW: one rank of a tensor-parallel group comes late to every collective, and all others wait."""

from __future__ import annotations

from typing import ClassVar, Final

from tailrace.diagnose.arm_evidence.ranks_on_arms import ranks_on_arms
from tailrace.diagnose.arms.asked import number_stated
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Event, Observed
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.diagnose.series_evidence.ranks_in_series import ranks_in_series
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["RankSkew"]

SHARE: Final = 0.2
WAITING: Final = frozenset({"collective", "waiting"})


class RankSkew(Cause):
    """The wait for the late rank makes more than a fifth of a step."""

    code: ClassVar[str] = "COMPUTE_RANK_SKEW"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = ("a trace over all ranks: cumulative wait and step time",)
    disproof: ClassVar[str] = "The skew is small and the transfer itself takes the time."
    action: ClassVar[Action] = Action.FIX

    def observe(self, observed: Observed) -> Finding | None:
        """From a trace's summary, else from stacks in which all ranks but one wait in a collective."""
        tables = ranks_on_arms(self, observed) or ranks_in_series(self, observed)
        return self._by_trace(observed) or tables or self._by_stacks(observed)

    def _by_trace(self, observed: Observed) -> Finding | None:
        step = observed.number("step_ms", "step_time_ms")
        skew = observed.number("cumulative_skew_ms", "rank_wait_ms", "skew_ms")
        if step is None:
            step = _stated_ms(
                observed, r"^(?:whole |decode |mean )?(?:step|iteration)(?: time| duration)?(?: ms| us| s)?$"
            )
        derived = ""
        if skew is None:
            each = observed.number("rank_skew_us_p50", "rank_skew_us")
            calls = observed.number("allreduce_per_step", "collectives_per_step")
            if each is not None and calls is not None:
                skew = each * calls / 1e3
                derived = f"{each:g} us x {calls:g} collectives = {skew:.3g} ms; "
        if skew is None:
            skew = _stated_ms(
                observed,
                r"(?:wait|waits|waiting).*(?:late|slow|last|rank|straggl)|(?:rank|straggler|launch).*(?:wait|skew|late)",
            )
        if step is None or skew is None or step <= 0:
            return None
        share = skew / step
        if share <= SHARE:
            return None
        place = next(
            (
                str(item.place)
                for item in observed.settings
                if item.name in ("cumulative_skew_ms", "rank_skew_us_p50", "step_ms")
            ),
            "form",
        )
        missing = []
        if derived:
            missing.append(
                "the skew summed over a step (a cross-rank trace): the median by the number of collectives assumes it"
            )
        part = f"{share:.0%}".replace("%", " %")
        return self._found(
            statement=f"One rank comes late and the others wait: {skew:.3g} ms of a step of {step:g} ms ({part}) "
            "pass in waiting "
            "for it, not in transferring.",
            evidence=[
                Evidence(
                    text=f"cumulative wait for the late rank {skew:.3g} ms",
                    source=place,
                    name="skew",
                    value=skew,
                    unit="ms",
                ),
                Evidence(
                    text=f"a step takes {step:g} ms, so it is {part}", source=place, name="step", value=step, unit="ms"
                ),
            ],
            relation=f"{derived}{skew:.3g}/{step:g} = {part} > 20 %",
            explains_ms=skew,
            n=0,
            missing=missing,
            level=Level.SUSPECTED if missing else Level.CONSISTENT,
        )

    def _by_stacks(self, observed: Observed) -> Finding | None:
        """One thread by process: its active one, else its main one."""
        by_process: dict[str, Event] = {}
        for event in observed.of_kind("stack"):
            process = str(event.attributes.get("process", ""))
            best = by_process.get(process)
            if best is None or (event.attributes.get("state") == "active" and best.attributes.get("state") != "active"):
                by_process[process] = event
        workers = {pid: event for pid, event in by_process.items() if _is_rank(event)}
        stuck = {pid for pid, event in workers.items() if event.attributes.get("class") == "collective"}
        late = [
            event for pid, event in workers.items() if pid not in stuck and event.attributes.get("class") not in WAITING
        ]
        if len(workers) < 2 or len(late) != 1 or len(stuck) != len(workers) - 1:
            return None
        if late[0].attributes.get("class") == "jit":
            return None  # that has a name of its own
        return self._found(
            statement=f"{len(stuck)} of {len(workers)} ranks wait in a collective while one does something else: "
            f"{late[0].text.split(' < ')[0]}.",
            evidence=[
                Evidence(
                    text=f"{len(stuck)} of {len(workers)} ranks stand in a collective",
                    source=str(next(iter(workers.values())).place),
                    name="ranks_waiting",
                    value=float(len(stuck)),
                ),
                Evidence(text=f"the late rank stands in {late[0].text}", source=str(late[0].place), name="late_rank"),
            ],
            relation=f"{len(stuck)} of {len(workers)} ranks wait for 1",
            explains_ms=None,
            n=len(workers),
            missing=["more dumps, or a cross-rank trace: one moment may be chance", "step time and cumulative wait"],
            level=Level.SUSPECTED,
        )

    def _found(
        self,
        *,
        statement: str,
        evidence: list[Evidence],
        relation: str,
        explains_ms: float | None,
        n: int,
        missing: list[str],
        level: Level,
    ) -> Finding:
        return self.finding(
            statement=statement,
            evidence=evidence,
            explains_ms=explains_ms,
            relation=relation,
            n=n,
            advice="Pin each rank's process to cores near its device (numactl, `taskset`), look at what delays its "
            "launches "
            "(a busy core, garbage collection, logging on rank 0), and capture graphs so that launches are few. The "
            "network is "
            "not at fault while the transfer itself is short.",
            price="Pinned cores are lost to others.",
            verify=(
                "tailrace diagnose facts.json  # step_ms and cumulative_skew_ms of the same cross-rank "
                "trace after the change: below 20 %"
            ),
            missing=missing,
            level=level,
        )


def _stated_ms(observed: Observed, words: str) -> float | None:
    """A stated time by its name (ms); a name without a unit is a question."""
    found = number_stated(observed, words)
    return None if found is None or found.number is None or not found.unit else in_unit(found.number, found.unit, "ms")


def _is_rank(event: Event) -> bool:
    title = str(event.attributes.get("title", "")).lower()
    return any(word in title for word in ("worker", "rank", "tp", "sglang::scheduler", "model_runner")) or not title
