"""The answer where nothing was found: that nothing is wrong, or what so few requests cannot tell."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tailrace.analyze.objective_waits import objective_ms
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.symptoms import metric_name, rows_of, stutter_is_told
from tailrace.model.finding import Action, Diagnosis, Finding
from tailrace.stats.quantiles import needed, quantile, supported

__all__ = ["NOTHING_WRONG", "Tested", "healthy", "tested_objectives"]


NOTHING_WRONG: Final = "Nothing is wrong"
"""How the summary begins where nothing was found."""


class Tested(NamedTuple):
    """An objective that was not seen to be missed."""

    name: str
    """`TTFT`, with its lane."""
    p: float
    n: int
    words: str
    """What was seen of it, at a quantile that n supports."""

    @property
    def told(self) -> bool:
        """Whether so many requests could tell: few of them miss a p99 of 1 in 50 by chance alone as good as never."""
        return supported(self.p, self.n)

    @property
    def lacking(self) -> int:
        """How many more requests are needed."""
        return max(0, needed(self.p) - self.n)


def tested_objectives(evidence: EvidenceSet) -> list[Tested]:
    """The numbers behind "nothing is wrong": each objective with what was seen, where anything was."""
    window = evidence.now
    out = []
    for metric, bounds in evidence.objectives.bounds.items():
        name, whose, rows = rows_of(evidence, window, metric)
        values = objective_ms(window.done, name)
        values = values[rows & ~np.isnan(values)]
        for p, bound_ns in sorted(bounds.items()):
            if not values.size:
                continue
            shown = next((q for q in (p, 0.95, 0.9, 0.5) if q <= p and supported(q, values.size)), None)
            seen = f"p{shown * 100:g} {quantile(values, shown):.0f} ms" if shown else f"at most {values.max():.0f} ms"
            over = int((values > bound_ns / 1e6).sum())
            # A quantile above its objective would read as a contradiction: say why it is not called wrong.
            chance = over > (1.0 - p) * values.size
            why = f"; {over} are over it, and the {1 - p:.1%} allowed give that many by chance" if chance else ""
            label = f"{metric_name(name)}{whose}"
            words = f"{label} {seen} (objective p{p * 100:g} <= {bound_ns / 1e6:.0f} ms, n = {values.size}{why})"
            out.append(Tested(label, p, int(values.size), words))
    return out


def healthy(evidence: EvidenceSet, validity: list[Finding], needs: list[str], differs: str = "") -> Diagnosis:
    """That nothing is wrong is said only of objectives that so many requests could have been seen to break; of the
    others, how many more are needed. `differs`: how the window differs from the one before all the same.
    """
    window = evidence.now
    tested = tested_objectives(evidence)
    untold = [one for one in tested if not one.told]
    streams = "no stream stutters" if stutter_is_told(window) else "whether streams stutter is not told"
    rest = f"{streams}, {len(window.every) - window.n} of {len(window.every)} requests did not complete."
    rest += f" It differs from the window before, within what was promised ({differs})." if differs else ""
    seen = "; ".join(filter(None, (", ".join(one.words for one in tested), rest)))
    if not untold:
        summary = f"{NOTHING_WRONG}: {seen}"
    else:
        lacking = max(one.lacking for one in untold)
        names = _names(untold)
        begin = f"{NOTHING_WRONG} that these requests can show"
        summary = (
            f"{begin}, but {names} cannot be told from {min(one.n for one in untold)} requests: "
            f"{lacking} more are needed. Seen: {seen}"
        )
        needs = [f"{lacking} more completed requests: {names} cannot be told from these"]
    return Diagnosis(
        validity=validity,
        action=Action.COLLECT if untold else Action.NONE,
        needs=needs,
        not_understood=evidence.not_understood,
        summary=summary,
    )


def _names(untold: list[Tested]) -> str:
    """`the p99 of TTFT and TPOT`."""
    by_quantile: dict[float, list[str]] = {}
    for one in untold:
        by_quantile.setdefault(one.p, []).append(one.name)
    return ", ".join(f"the p{p * 100:g} of {' and '.join(dict.fromkeys(names))}" for p, names in by_quantile.items())
