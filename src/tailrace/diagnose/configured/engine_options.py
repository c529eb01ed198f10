"""Engine options that invite a cause: what `tailrace check` says of them, and limits beside numbers that were given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.engine_settings import KV_CAPACITY
from tailrace.diagnose.observed import Event, Observed, Setting
from tailrace.diagnose.shorter_prompts import shorter_prompts
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["ADVICE", "advised", "cap_low", "context_above_cache", "step_large", "switched_off"]

ADVICE: Final = "advice"
"""The kind of event by which a reader of engine options hands on what `check` says of them."""
LOW_CAP: Final = 64.0
LARGE_STEP: Final = 8192.0
LONG_STEP_MS: Final = 500.0
_WAITS: Final = re.compile(r"back for (\d+(?:\.\d+)?) ms")
_COMPARE: Final = (
    "tailrace bench http://localhost:8000 --rate 5 --duration 300 --out after.run && tailrace "
    "compare before.run after.run"
)


def advised(cause: Cause, observed: Observed, codes: tuple[str, ...], missing: str) -> Finding | None:
    """What `check` advises against, as a suspicion of this cause."""
    found = [event for event in observed.of_kind(ADVICE) if event.attributes.get("code") in codes]
    return _of_advice(cause, found[0], missing) if found else None


def _of_advice(cause: Cause, event: Event, missing: str) -> Finding:
    told = {key: str(value) for key, value in event.attributes.items()}
    evidence = [Evidence(text=event.text, source=str(event.place), name=told.get("subject", ""))]
    if told.get("facts"):
        evidence.append(Evidence(text=told["facts"], source=str(event.place)))
    return cause.finding(
        statement=event.text,
        evidence=evidence,
        # A wait that is configured is known to the millisecond, and comes before what may only be too small.
        explains_ms=float(waits[1]) if (waits := _WAITS.search(event.text)) is not None else None,
        relation=f"{told.get('code', '')}: {told.get('subject', '')}".strip(": "),
        n=1,
        advice=told.get("advice", ""),
        price=told.get("price", ""),
        verify=_COMPARE + _more(told.get("verify", "")),
        missing=[missing],
        level=Level.SUSPECTED,
        action=Action.TUNE,
    )


def _more(words: str) -> str:
    """What to look at besides, behind the command."""
    return f"  # {words}" if words and not words.startswith("tailrace bench") else ""


def switched_off(
    cause: Cause, observed: Observed, *, option: str, words: str, advice: str, missing: str
) -> Finding | None:
    """An option of an engine that somebody switched off."""
    off = _engine_setting(observed, option)
    if off is None or off.value is not False:
        return None
    return cause.finding(
        statement=f"{option} is off in {off.scope}: {words}.",
        evidence=[Evidence(text=f"{option} = false", source=str(off.place) or "form", name=option)],
        explains_ms=None,
        relation=f"{option} = false",
        n=1,
        advice=advice,
        price="Next to none.",
        verify=_COMPARE,
        missing=[missing],
        level=Level.SUSPECTED,
        action=Action.TUNE,
    )


def cap_low(cause: Cause, observed: Observed) -> Finding | None:
    """A cap on running requests that is far below what engines have by default."""
    cap = _engine_setting(observed, "max_num_seqs")
    if cap is None or cap.number is None or cap.number >= LOW_CAP:
        return None
    return cause.finding(
        statement=f"The engine runs {cap.number:g} requests at most (max_num_seqs): the cap, not the card, may be what "
        "makes requests wait.",
        evidence=[_shown(cap)],
        explains_ms=None,
        relation=f"max_num_seqs {cap.number:g} < {LOW_CAP:g}",
        n=1,
        advice=f"--max-num-seqs {int(2 * cap.number)}, as one step of a sweep: raise it as long as TPOT stays within "
        "its target; do not add replicas before.",
        price="Time per output token rises with the batch; beyond the KV cache, preemptions.",
        verify=_COMPARE,
        missing=["throughput and TPOT at this cap and at twice of it, with the queue time"],
        level=Level.SUSPECTED,
        action=Action.TUNE,
    )


def step_large(cause: Cause, observed: Observed) -> Finding | None:
    """A step that holds so many prompt tokens that every stream stands still beside a long prompt."""
    step = _engine_setting(observed, "max_num_batched_tokens")
    if step is None or step.number is None or step.number < LARGE_STEP:
        return None
    rate = observed.number("prefill_tok_s", "prompt_tok_s")
    lasts = step.number / rate * 1e3 if rate else None
    if lasts is not None and lasts < LONG_STEP_MS:
        return None
    evidence = [_shown(step)]
    relation = f"max_num_batched_tokens {step.number:g} >= {LARGE_STEP:g}"
    words = ""
    missing = ["gaps of the streams beside a long prompt's prefill, or the prefill rate"]
    if lasts is not None and rate:
        words = f", {lasts / 1e3:.2f} s at {rate:g} tokens/s"
        relation = f"{step.number:g}/{rate:g} = {lasts / 1e3:.2f} s"
        rated = observed.setting("prefill_tok_s", "prompt_tok_s")
        if rated is not None:
            evidence.append(_shown(rated))
        missing = ["gaps of the streams: are they as long as that"]
    return cause.finding(
        statement=f"One step may hold {step.number:g} prompt tokens{words}: meanwhile no stream gets a token.",
        evidence=evidence,
        explains_ms=None,
        relation=relation,
        n=1,
        advice="--max-num-batched-tokens 2048 (SGLang: --chunked-prefill-size 2048), or a lane of their own for long "
        "prompts. " + shorter_prompts(rate=rate),
        price="Long prompts need more steps: their time to first token rises.",
        verify=_COMPARE,
        missing=missing,
        level=Level.SUSPECTED,
        action=Action.TUNE,
    )


def context_above_cache(cause: Cause, observed: Observed) -> Finding | None:
    """A context that the whole KV cache does not hold: one request of that length can never be admitted."""
    context = observed.setting("max_model_len")
    cache = observed.setting(*KV_CAPACITY)
    if context is None or cache is None or not context.number or not cache.number or context.number <= cache.number:
        return None
    return cause.finding(
        statement=f"max_model_len {context.number:g} is above the KV cache of {cache.number:g} tokens: a request of "
        "that length waits for room that never comes, and those behind it wait with it.",
        evidence=[_shown(context), _shown(cache)],
        explains_ms=None,
        relation=f"{context.number:g} > {cache.number:g} tokens",
        n=1,
        advice=f"--max-model-len {cache.number:.0f} or less, and refuse longer prompts at the gateway; or more KV "
        "cache (gpu_memory_utilization, a quantised cache, more cards).",
        price="Prompts above it are refused at once instead of waiting.",
        verify="tailrace check COMMAND",
        missing=["Running 0 with Waiting above 0 in the engine's log, or a prompt of that length"],
        level=Level.SUSPECTED,
        action=Action.TUNE,
    )


def _engine_setting(observed: Observed, name: str) -> Setting | None:
    """A setting that an engine was started with (not one arm of a sweep)."""
    scopes = {item.scope for item in observed.settings if item.name == "engine"}
    return next((item for item in observed.settings if item.name == name and item.scope in scopes), None)


def _shown(setting: Setting) -> Evidence:
    return Evidence(
        text=f"{setting.name} = {setting.number:g}",
        source=str(setting.place) or "form",
        name=setting.name,
        value=setting.number,
    )
