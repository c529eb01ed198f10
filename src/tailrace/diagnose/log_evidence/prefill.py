"""SCHED_PREFILL_STEALS_DECODE from an engine's log: while prompts are computed, streams get one token a step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.engine_settings import step_budget
from tailrace.diagnose.kv_cache import KV_FULL, thrown_out
from tailrace.diagnose.observed import Observed, Setting
from tailrace.diagnose.observed.load import Load, loads
from tailrace.diagnose.shorter_prompts import shorter_prompts
from tailrace.model.finding import Evidence, Finding, Level, Proof

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["ends", "prefill_advice", "prefill_in_load", "prefill_in_steps"]

FALL: Final = 0.3
"""Of the rate without a prompt: a stream that falls below it waits for prompts."""
TWICE: Final = 2
GOOD_STEP_S: Final = 0.25
"""A step as long as this is felt as a pause only by few; the advised budget makes steps of about this length."""
LONG_STEP_MS: Final = 500.0
_ALONE: Final = ("decode_tok_s_alone", "decode_tok_s_idle", "decode_alone_tok_s")


class _Fall(NamedTuple):
    load: Load
    rows: np.ndarray
    """Readings with a prompt in progress and more than one request."""
    prefill: float
    """Tokens a second (median of those readings)."""
    made: float
    alone: float
    alone_source: str

    @property
    def streams(self) -> float:
        """Those that decode beside the prompt, at least."""
        return max(float(np.median(self.load.get("running")[self.rows])) - 1.0, 1.0)


def ends(setting: Setting | None) -> tuple[float, float] | None:
    """A number as a range."""
    if setting is None or setting.number is None:
        return None
    value = setting.value
    if isinstance(value, list) and len(value) >= 2:
        numbers = [float(one) for one in value if isinstance(one, (int, float))]
        return min(numbers), max(numbers)
    return setting.number, setting.number


def _fall(load: Load, observed: Observed) -> _Fall | None:
    prompt, running, made = load.get("prompt_tok_s"), load.get("running"), load.get("output_tok_s")
    if not load.has("prompt_tok_s") or not load.has("output_tok_s"):
        return None
    top = float(np.nanmax(prompt))
    with np.errstate(invalid="ignore"):
        busy = np.flatnonzero((prompt >= 0.3 * top) & (prompt > 0) & (running >= 2))
        clear = (prompt < 0.05 * top) & (running > 0) & (made > 0)
        rates = load.rate[clear]
    if busy.size < TWICE or top <= 0:
        return None
    told = ends(next((item for name in _ALONE if (item := observed.setting(name)) is not None), None))
    if rates.size:
        alone, source = float(np.median(rates)), load.where(int(np.flatnonzero(clear)[-1]))
    elif told is not None:
        alone, source = told[0], "stated: decode rate alone"
    else:
        return None
    with np.errstate(invalid="ignore"):
        hit = busy[(made[busy] / np.maximum(running[busy] - 1.0, 1.0)) < FALL * alone]
    if hit.size < max(TWICE, 0.5 * busy.size):
        return None
    return _Fall(load, hit, float(np.median(prompt[hit])), float(np.median(made[hit])), alone, source)


def prefill_in_load(cause: Cause, observed: Observed) -> Finding | None:
    """Streams fall to a fraction while prompts are computed; one step lasts step budget / prefill rate."""
    falls = [fall for load in loads(observed) if (fall := _fall(load, observed)) is not None]
    if not falls:
        return None
    fall = max(falls, key=lambda one: one.rows.size)
    load = fall.load
    budget = step_budget(observed)
    told_rate = observed.number("prefill_tok_s")
    rate = fall.prefill
    kv = float(np.nanmax(load.get("kv_usage")[fall.rows])) if load.has("kv_usage") else None
    gap = ends(observed.setting("gap_s", "longest_pause_s", "stall_s"))
    missing, rivals, checked = [], [], []
    first = load.where(int(fall.rows[0]))
    facts = [
        Evidence(
            text=f"prompts are computed at {rate:,.0f} tok/s while {fall.streams + 1:g} requests run, and "
            f"{fall.made:g} "
            f"tok/s come out for all streams together ({fall.rows.size} lines)",
            source=f"{first} to {load.where(int(fall.rows[-1]))}",
            name="prefill_rate",
            value=rate,
            unit="tok/s",
        ),
        Evidence(
            text=f"without a prompt in progress a stream makes {fall.alone:g} tok/s",
            source=fall.alone_source,
            name="rate_alone",
            value=fall.alone,
            unit="tok/s",
        ),
    ]
    if told_rate and abs(told_rate / rate - 1.0) > 0.5:
        checked.append(f"the stated prefill rate is {told_rate:g} tok/s")
    relation, step = "", None
    if budget is not None and budget.number:
        step = budget.number / rate
        relation = f"{budget.number:g}/{rate:g} = {step:.2f} s a step"
        facts.append(
            Evidence(
                text=f"a step holds up to {budget.number:g} tokens ({budget.name}): {budget.number:g}/{rate:g} "
                f"= {step:.2f} s",
                source=str(budget.place) or "configuration",
                name="step",
                value=round(step, 3),
                unit="s",
            )
        )
        most = fall.streams / step
        relation += f"; one token a step and stream: at most {most:.2f} tok/s, seen {fall.made:g}"
        if fall.made > 3 * most:
            rivals.append("COMPUTE_STALL")
            checked.append(f"the streams make more than one token a step would give ({most:.2f} tok/s)")
    else:
        missing.append("the step budget (max_num_batched_tokens; SGLang: chunked_prefill_size) of the start-up log")
    extra = ends(observed.setting("page_fault_s_per_chunk", "io_s_per_chunk"))
    if gap is not None:
        shown = f"{gap[0]:g} to {gap[1]:g}" if gap[1] > gap[0] else f"{gap[0]:g}"
        facts.append(Evidence(text=f"gaps of {shown} s were seen", source="stated", name="gap", value=gap[0], unit="s"))
        relation += f"; gaps seen {shown} s"
        if extra is not None:
            relation += f" ({extra[0]:g}-{extra[1]:g} s of page faults on top of each step)"
            facts.append(
                Evidence(
                    text=f"each step loses {extra[0]:g} to {extra[1]:g} s more to page faults",
                    source="stated", name="page_faults", value=extra[1], unit="s",
                )
            )  # fmt: skip
        if step is not None and not 0.3 * gap[0] <= step + (extra[1] if extra else 0.0) <= 2.0 * gap[1]:
            missing.append(
                "the length of the gaps and of the prompts: the step does not explain the gaps that were seen"
            )
    _kv(observed, kv, checked, rivals, missing)
    prompts = observed.number("prompt_tokens")
    if prompts:
        whole = prompts / rate
        facts.append(
            Evidence(
                text=f"a prompt of {prompts:,.0f} tokens takes {prompts:g}/{rate:g} = {whole:.0f} s",
                source="stated", name="prefill", value=round(whole, 1), unit="s",
            )
        )  # fmt: skip
    seconds = float(load.at[fall.rows[-1]] - load.at[fall.rows[0]]) if load.timed else None
    words = f", {step:.2f} s a step" if step is not None else ""
    return cause.finding(
        statement=f"Prompts take the steps from running streams: while they are computed at {rate:,.0f} "
        f"tok/s{words}, all "
        f"streams together make {fall.made:g} tok/s instead of {fall.alone:g} each.",
        evidence=facts,
        explains_ms=None if step is None else step * 1e3,
        relation=relation or f"{fall.made:g} tok/s with prompts, {fall.alone:g} tok/s a stream without",
        n=int(fall.rows.size),
        advice=prefill_advice(budget, rate, prompts),
        price="The first token of long prompts comes later, because each step computes less of them; a second pool of "
        "engines for prefill costs its cards and the transfer of the KV cache.",
        verify=(
            "tailrace bench http://localhost:8000 --mix 'short:0.9,long:0.1' --rate 5 --duration 60 "
            "--out after.run && tailrace diagnose after.run"
        ),
        missing=missing,
        rivals=list(dict.fromkeys(rivals)),
        disproof_checked=[
            *checked,
            f"lines without a prompt in progress run at {fall.alone:g} tok/s a stream",
            *([f"it lasted {seconds:.0f} s"] if seconds else []),
        ],
    )


def _kv(observed: Observed, kv: float | None, checked: list[str], rivals: list[str], missing: list[str]) -> None:
    """Its disproof: a full cache or preemptions."""
    if kv is None:
        missing.append("KV usage of the same lines")
    else:
        checked.append(f"KV usage at most {kv:.0%}")
        if kv >= KV_FULL:
            rivals.append("SCHED_KV_PREEMPTION")
    count = len(thrown_out(observed))
    if count:
        rivals.append("SCHED_KV_PREEMPTION")
    checked.append(f"{count} lines of preemption")


def prefill_advice(budget: Setting | None, rate: float, prompts: float | None) -> str:
    """What to set, at which step length, and what a shorter context saves; `rate` in tokens/s."""
    good = 2 ** max(8, math.floor(math.log2(max(GOOD_STEP_S * rate, 256.0))))
    now = f" (now {budget.number:g})" if budget is not None and budget.number else ""
    flag = {
        "chunked_prefill_size": "--chunked-prefill-size",
        "n_batch": "--batch-size",
    }.get(
        budget.name if budget is not None else "",
        "max_num_batched_tokens (vLLM --max-num-batched-tokens, SGLang --chunked-prefill-size)",
    )
    return (
        f"Lower the step budget {flag}{now}, to about {good}: {good}/{rate:.4g} = {good / rate:.2f} s a step. Cap one "
        "prompt's share of a step (vLLM --long-prefill-token-threshold), give long prompts a lane of their own with a "
        "small running limit, or separate prefill from decode (disaggregation). "
        + shorter_prompts(tokens=prompts, rate=rate)
    )


def prefill_in_steps(cause: Cause, observed: Observed) -> Finding | None:
    """From a log with a line a step: long steps that carry prompt tokens beside streams that decode."""
    best: tuple[float, Finding] | None = None
    for steps in observed.of_series("step"):
        prompts = next(
            (one for one in observed.of_series("step_prompt_tokens", **steps.labels) if one.place == steps.place), None
        )
        decodes = next(
            (one for one in observed.of_series("step_decodes", **steps.labels) if one.place == steps.place), None
        )
        if prompts is None or decodes is None or len(prompts) != len(steps):
            continue
        carried, beside = prompts.values, decodes.values
        hit = np.flatnonzero((steps.values >= LONG_STEP_MS) & (carried > 0) & (beside > 0))
        plain = steps.values[(carried == 0) & (beside > 0)]
        usual = float(np.median(plain)) if plain.size else float("nan")
        if not hit.size or usual * 5 > LONG_STEP_MS:
            continue
        top = int(hit[np.argmax(steps.values[hit])])
        took, tokens, streams = float(steps.values[top]), float(carried[top]), float(beside[top])
        named = hit.size >= TWICE and not math.isnan(usual)
        finding = cause.finding(
            statement=f"One step computed {tokens:,.0f} prompt tokens in {took:,.0f} ms and {streams:g} streams waited "
            f"for it ({hit.size} such steps).",
            evidence=[
                Evidence(
                    text=f"a step of {took:,.0f} ms held {tokens:,.0f} prompt tokens and {streams:g} decoding requests",
                    source=str(steps.line_of(top)),
                    name="step",
                    value=took,
                    unit="ms",
                ),
                Evidence(text=f"{hit.size} steps of {LONG_STEP_MS:g} ms or more are such", source=steps.place.source),
                *(
                    [
                        Evidence(
                            f"steps without a prompt take {usual:.1f} ms", steps.place.source, "usual_step", usual, "ms"
                        )
                    ]
                    if not math.isnan(usual)
                    else []
                ),
            ],
            explains_ms=took,
            relation=f"{tokens:g} tokens / {took / 1e3:.2f} s = {tokens / took * 1e3:,.0f} tok/s; the gap of "
            f"all {streams:g} "
            f"streams is the step, {took:,.0f} ms",
            n=int(hit.size),
            advice=prefill_advice(None, tokens / took * 1e3, tokens),
            price="The first token of long prompts comes later.",
            verify="tailrace diagnose vllm.log",
            missing=[] if not math.isnan(usual) else ["steps without a prompt, to compare with"],
            disproof_checked=[
                f"steps without a prompt take {usual:.1f} ms" if plain.size else "no step without a prompt"
            ],
            level=Level.PROVEN if named else None,
            proof=Proof.IN_WINDOW,
        )
        if best is None or took > best[0]:
            best = (took, finding)
    return None if best is None else best[1]
