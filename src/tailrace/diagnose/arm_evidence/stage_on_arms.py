"""A stage of its own in a table: it grew with the total, and by about as much."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from msgspec import structs

from tailrace.diagnose.arms.asked_once import asked_once
from tailrace.diagnose.arms.of_requests import classes_of, stages_by, tables_of_requests
from tailrace.diagnose.observed import Arm, Observed, Quoted, Rows
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["stage_on_arms"]

MOST: Final = 0.5
"""Of what the total gained, or of the total where there is one row only, the stage must have this share."""
GROWN: Final = 1.3
LEAST_MS: Final = 20.0
FEW: Final = 20
_STATS: Final = ("p99", "p95", "p90", "p50", "mean", "")
_TOTALS: Final = ("ttft", "first_partial", "e2e", "final_latency")
_STAGES: Final = ("queue", "preprocess", "encode", "prefill", "decode", "postprocess", "response")
_SUM: Final = "sum of the stages"
_ENOUGH: Final = 3


class _Gain(NamedTuple):
    fast: Arm
    slow: Arm
    stage: tuple[Quoted, Quoted]
    total: tuple[Quoted, Quoted]

    @property
    def stage_ms(self) -> float:
        return self.stage[1].value - self.stage[0].value

    @property
    def total_ms(self) -> float:
        return self.total[1].value - self.total[0].value


def stage_on_arms(cause: Cause, observed: Observed, *, advice: str) -> Finding | None:
    """Of two rows, the slower one's stage makes at least half of the difference; of one alone, half of the total."""
    arms = [arm for arm in observed.arms if arm.quoted(cause.stage, *_STATS) is not None]
    arms = arms or _of_requests(cause.stage, observed)
    gains = [gain for slow in arms for fast in arms if (gain := _gain(cause.stage, fast, slow))]
    if gains:
        return _grown(cause, max(gains, key=lambda gain: gain.stage_ms), advice)
    alone = [one for arm in arms if (one := _alone(cause.stage, arm)) is not None]
    return _share(cause, max(alone, key=lambda one: one[1].value), advice) if alone else None


def _of_requests(stage: str, observed: Observed) -> list[Arm]:
    """Arms of a table of requests: its classes where one of them sets the slow ones apart, else those that spend most
    of their time in the stage and the others, else all of them.
    """
    out: list[Arm] = []
    for rows in tables_of_requests(observed):
        times = rows.numbers(f"{stage}_ms")
        whole = rows.numbers("ttft_ms" if stage != "postprocess" and rows.has("ttft_ms") else "e2e_ms")
        if not np.isfinite(times).any() or _one_after_the_other(rows):
            continue
        with np.errstate(invalid="ignore"):
            heavy = times > MOST * whole
        for column, masks in classes_of(rows):
            if any(bool(heavy[mask].mean() > MOST) for mask in masks.values()) and heavy.mean() != 1.0:
                out += [_renamed(arm, column) for arm in stages_by(rows, masks)]
                break
        else:
            light = ~heavy
            if min(heavy.sum(), light.sum()) >= _ENOUGH:
                out += stages_by(rows, {f"requests with most in {stage}": heavy, "the others": light})
            else:
                out += stages_by(rows, {f"median of {len(rows)} requests": np.ones(len(rows), dtype=bool)})
    return out


def _one_after_the_other(rows: Rows) -> bool:
    """Whether its arms were sent one after the other: runs, of which those who compare windows judge what grew. Classes
    of requests, and deployments side by side, come mixed.
    """
    send = rows.numbers("t_send_ms")
    spans = []
    for name, members in rows.members("arm").items():
        known = send[members][np.isfinite(send[members])]
        if name and known.size:
            spans.append((float(known.min()), float(known.max())))
    return len(spans) > 1 and all(one[1] < two[0] for one, two in pairwise(sorted(spans)))


def _renamed(arm: Arm, column: str) -> Arm:
    name = f"{column} {arm.name}"
    return structs.replace(arm, name=name, label=name)


def _gain(stage: str, fast: Arm, slow: Arm) -> _Gain | None:
    if fast is slow:
        return None
    for stat in _STATS:
        one, two = fast.quoted(stage, stat), slow.quoted(stage, stat)
        if one is None or two is None or one.relative or two.relative or two.value < GROWN * one.value:
            continue
        for name in (*_TOTALS, _SUM):
            before, after = _total(fast, name, stat), _total(slow, name, stat)
            if before is None or after is None or before.relative or after.relative:
                continue
            gain = _Gain(fast, slow, (one, two), (before, after))
            if gain.total_ms >= LEAST_MS and MOST * gain.total_ms <= gain.stage_ms <= 1.1 * gain.total_ms:
                return gain
    return None


@asked_once
def _total(arm: Arm, name: str, stat: str) -> Quoted | None:
    """What the stages make together; of a table that tells stages only, their sum."""
    if name != _SUM:
        return arm.quoted(name, stat)
    parts = [found for stage in _STAGES if (found := arm.quoted(stage, stat)) is not None and not found.relative]
    if len(parts) < _ENOUGH or any(part.unit != "ms" for part in parts):
        return None
    return Quoted(quantity=_SUM, stat=stat, value=sum(part.value for part in parts), unit="ms", place=parts[0].place)


def _alone(stage: str, arm: Arm) -> tuple[Arm, Quoted, Quoted] | None:
    for stat in _STATS:
        part = arm.quoted(stage, stat)
        totals = [found for name in (*_TOTALS, _SUM) if (found := _total(arm, name, stat)) is not None]
        if part is None or part.relative or part.value < LEAST_MS:
            continue
        # Of a stage behind the first token, the time to it is no whole.
        fits = (one for one in totals if not one.relative and part.value <= 1.02 * one.value)
        total = next(fits, None)
        if total is not None and part.value >= MOST * total.value:
            return arm, part, total
    return None


def _grown(cause: Cause, gain: _Gain, advice: str) -> Finding:
    stage, total = gain.stage[1], gain.total[1]
    counts = [arm.get("n") for arm in (gain.fast, gain.slow)]
    missing = []
    if any(count is None or count < FEW for count in counts):
        told = " and ".join("?" if count is None else f"{count:g}" for count in counts)
        missing.append(
            f"at least {FEW} requests behind each row (n = {told}): the spread from run to run could be as large"
        )
    share = gain.stage_ms / gain.total_ms
    return cause.finding(
        statement=f"Between {gain.fast.name} and {gain.slow.name}, {f'{cause.stage} {stage.stat}'.strip()} went from "
        f"{gain.stage[0].value:.4g} to {stage.value:.4g} ms, which is {share:.0%} of what {total.quantity.upper()} "
        f"gained ({gain.total_ms:.4g} ms).",
        evidence=[
            *(_shown(arm, value) for arm, value in zip((gain.fast, gain.slow), gain.stage, strict=True)),
            *(_shown(arm, value) for arm, value in zip((gain.fast, gain.slow), gain.total, strict=True)),
        ],
        explains_ms=gain.stage_ms,
        relation=f"({stage.value:.4g} - {gain.stage[0].value:.4g}) / ({total.value:.4g} - {gain.total[0].value:.4g}) = "
        f"{gain.stage_ms:.4g}/{gain.total_ms:.4g} ms = {share:.0%}",
        n=2,
        advice=advice,
        price="Time of whoever changes that stage; nothing at the model.",
        verify="tailrace diagnose table.md",
        missing=missing,
        disproof_checked=[f"in {gain.fast.name} the stage takes {gain.stage[0].value:.4g} ms"],
    )


def _share(cause: Cause, alone: tuple[Arm, Quoted, Quoted], advice: str) -> Finding:
    arm, part, total = alone
    return cause.finding(
        statement=f"{f'{cause.stage.capitalize()} {part.stat}'.strip()} is {part.value:.4g} ms of {total.value:.4g} ms "
        f"{total.quantity.upper()} ({part.value / total.value:.0%}).",
        evidence=[_shown(arm, part), _shown(arm, total)],
        explains_ms=part.value,
        relation=f"{part.value:.4g}/{total.value:.4g} = {part.value / total.value:.0%}",
        n=1,
        advice=advice,
        price="Time of whoever changes that stage; nothing at the model.",
        verify="tailrace diagnose table.md",
        missing=["the same row of requests (or of a version) that is in time"],
    )


def _shown(arm: Arm, value: Quoted) -> Evidence:
    return Evidence(
        text=f"{arm.name}: {value.quantity} {value.stat} {value.value:.4g} ms".replace("  ", " "),
        source=str(value.place if value.place.source else arm.place) or "form",
        name=value.key,
        value=value.value,
        unit="ms",
    )
