"""MIX_STRUCTURED_OUTPUT: requests with a grammar pay before decoding, or starve the device of work."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import CENTRAL, USUAL_FIRST, as_share, figure, number_stated, said, told
from tailrace.diagnose.arms.pairs import changed, pairs
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.cause import surest
from tailrace.diagnose.limits import IDLE
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Evidence, Finding, Level, Proof

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["GRAMMAR", "grammar_on_arms"]

GRAMMAR: Final = re.compile(
    r"grammar|json|schema|structur|guided|regex|\bebnf\b|\bgbnf\b|xgrammar|outlines|guidance|lm[ _-]?format|enforcer|"
    r"constrain|\bfsm\b|tool[ _-]?call|function[ _-]?call",
    re.IGNORECASE,
)
_BACKENDS: Final = re.compile(r"xgrammar|outlines|guidance|llguidance|lm[ _-]?format|enforcer|\bgbnf\b", re.IGNORECASE)
_PLAIN: Final = re.compile(
    r"\bplain|\bfree|unconstrain|without|\bno (?:grammar|schema|json|structur)|none\b|\btext\b|unstructured|baseline|"
    r"normal",
    re.IGNORECASE,
)
LATER: Final = 2.0
EQUAL: Final = 0.2
SLOWER: Final = 1.5
ADVICE: Final = (
    "Cache compiled grammars (the same schema again and again should cost once), compile them off the request's path, "
    "try another backend (vLLM: --structured-outputs-config backend xgrammar or guidance; SGLang: "
    "--grammar-backend), and "
    "simplify the schema. Give requests with a schema a lane of their own meanwhile"
)
PRICE: Final = "Backends differ in what they accept; a lane makes requests with a schema wait."


def grammar_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """Between arms with other grammars, or other shares of them."""
    return surest([_first_token(cause, observed), _throughput(cause, observed)])


def _first_token(cause: Cause, observed: Observed) -> Finding | None:
    best: tuple[float, Arm, Quoted, Arm, Quoted] | None = None
    named = GRAMMAR.search(changed(observed)) is not None
    for pair in pairs([arm for arm in observed.arms if figure(arm, "ttft") is not None]):
        one = figure(pair.first, "ttft", stats=USUAL_FIRST)
        two = None if one is None else figure(pair.second, "ttft", stats=(one.stat,))
        if one is None or two is None or min(one.value, two.value) <= 0:
            continue
        (late, slow), (early, fast) = sorted(((one, pair.first), (two, pair.second)), key=lambda item: -item[0].value)
        ratio = late.value / early.value
        if ratio < LATER or (best is not None and ratio <= best[0]):
            continue
        if not (named or _names_grammar(said(slow)) or _names_grammar(said(fast))):
            continue
        # Where one arm has no grammar, the one with it must be the late one.
        plain = _PLAIN.search(said(slow)) is not None and not _BACKENDS.search(said(slow))
        if not plain:
            best = ratio, slow, late, fast, early
    return None if best is None else _of_first_token(cause, observed, *best)


@lru_cache(maxsize=512)
def _names_grammar(text: str) -> bool:
    """Remembered: an arm stands in a hundred pairs."""
    return GRAMMAR.search(text) is not None


def _of_first_token(
    cause: Cause, observed: Observed, ratio: float, slow: Arm, late: Quoted, fast: Arm, early: Quoted
) -> Finding | None:
    pace = _pace(slow, fast)
    missing = []
    evidence = [evidence_of(slow, late), evidence_of(fast, early)]
    if pace is None:
        missing.append("ITL (or TPOT) of both arms: it is equal where the cost lies before decoding")
        same = ""
    else:
        apart = pace[0].value / pace[1].value - 1.0
        if abs(apart) > max(EQUAL, 0.25 * (ratio - 1.0)):
            return None
        evidence += [evidence_of(slow, pace[0]), evidence_of(fast, pace[1])]
        same = (
            f", while {quantity(pace[0])} is equal ({number(pace[0].value, 'ms')} and "
            f"{number(pace[1].value, 'ms')}): the cost "
            "lies before decoding (next tokens come as fast)"
        )
    plain = [arm for arm in observed.arms if _PLAIN.search(said(arm)) and not _BACKENDS.search(said(arm))]
    one_plain = any(arm is fast for arm in plain)
    if not one_plain and not plain:
        missing.append("requests without a grammar in the same window: they must not be slow")
    what = changed(observed)
    counts = [figure(arm, "n") for arm in (slow, fast)]
    n = int(sum(item.value for item in counts if item is not None))
    proven = bool(what) and GRAMMAR.search(what) is not None and one_plain and pace is not None
    return cause.finding(
        statement=f"{quantity(late)} is {number(late.value, 'ms')} with {slow.name} and {number(early.value, 'ms')} "
        "with "
        f"{fast.name}, {ratio:.3g} x{same}. The grammar (schema) is compiled on the request's path.",
        evidence=[
            *evidence,
            Evidence(f"{ratio:.3g} x", str(late.place) or "form", "ratio", round(ratio, 4)),
            *([Evidence(f"changed: {what}", "form")] if what else []),
        ],
        explains_ms=late.value - early.value,
        relation=f"{number(late.value)} / {number(early.value)} = {ratio:.3g}"
        + (f"; {quantity(pace[0])} {pace[0].value / pace[1].value:.2f} x" if pace is not None else ""),
        n=n,
        advice=f"{ADVICE}.",
        price=PRICE,
        verify=again(slow, more='--extra-body \'{"response_format": {"type": "json_object"}}\''),
        missing=missing,
        disproof_checked=[
            "requests without a grammar are not slow"
            if one_plain
            else "requests without a grammar are not among the arms"
        ],
        level=Level.PROVEN if proven and not missing else None,
        proof=Proof.ONE_CHANGE,
    )


def _throughput(cause: Cause, observed: Observed) -> Finding | None:
    what = changed(observed)
    share = any(
        re.search(r"structured|grammar|schema", item.name.replace("_", " ")) and item.value for item in told(observed)
    )
    for pair in pairs(observed.arms):
        found = _slower(pair.first, pair.second)
        if found is None:
            continue
        slow, low, fast, high, ratio = found
        if not GRAMMAR.search(f"{said(slow)} {what}") and not share:
            continue
        if _PLAIN.search(said(slow)) and not GRAMMAR.search(re.sub(_PLAIN, "", said(slow))):
            continue
        return _of_throughput(cause, observed, slow, low, fast, high, ratio)
    return None


def _of_throughput(
    cause: Cause, observed: Observed, slow: Arm, low: Quoted, fast: Arm, high: Quoted, ratio: float
) -> Finding | None:
    used = figure(slow, "gpu_util", stats=("mean", "", "p50", "max"))
    stated = number_stated(observed, r"gpu util")
    gpu = (
        used.value
        if used is not None
        else None
        if stated is None or stated.number is None
        else as_share(stated.number, stated.unit)
    )
    if gpu is not None and gpu > IDLE:
        return None
    running = figure(slow, "running", "concurrency")
    said_running = number_stated(observed, r"^(?:engine )?running$|^concurrency$")
    busy = (running is not None and running.value > 0) or (said_running is not None and (said_running.number or 0) > 0)
    evidence = [evidence_of(fast, high), evidence_of(slow, low)]
    if used is not None:
        evidence.append(evidence_of(slow, used))
    elif stated is not None:
        evidence.append(evidence_of_setting(stated))
    evidence += (
        [evidence_of(slow, running)]
        if running is not None
        else [evidence_of_setting(said_running)]
        if said_running is not None
        else []
    )
    missing = (
        [] if gpu is not None else ["GPU utilisation meanwhile: an idle GPU with running requests points to the CPU"]
    )
    if not busy:
        missing.append("running requests meanwhile")
    missing.append(
        "TTFT and ITL of plain requests in the same window (they must not be slow), and CPU use of the engine"
    )
    slower = _pace(slow, fast)
    paced = ""
    if slower is not None and high.quantity != slower[0].quantity:
        paced = f"; {quantity(slower[0])} {number(slower[0].value)} / {number(slower[1].value)} = "
        paced += f"{slower[0].value / slower[1].value:.3g} x"
        evidence += [evidence_of(fast, slower[1]), evidence_of(slow, slower[0])]
    what = changed(observed)
    idle = f" while the GPU is at {number(gpu, 'share')}" if gpu is not None else ""
    return cause.finding(
        statement=f"{quantity(high).capitalize()} falls from {number(high.value, high.unit)} ({fast.name}) to "
        f"{number(low.value, low.unit)} ({slow.name}){idle}: computing the grammar's masks (the schema's state "
        "machine) on "
        "the CPU holds every step back.",
        evidence=[*evidence, *([Evidence(f"changed: {what}", "form")] if what else [])],
        explains_ms=None,
        relation=f"{number(high.value)} / {number(low.value)} = {ratio:.3g}"
        + (f" at GPU {number(gpu, 'share')}" if gpu is not None else "")
        + paced,
        n=2,
        advice=f"{ADVICE}; give the engine more CPU.",
        price=PRICE,
        verify=again(slow, more='--extra-body \'{"response_format": {"type": "json_object"}}\''),
        missing=missing,
        rivals=["FE_CPU_STARVED"],
        disproof_checked=[f"GPU utilisation {number(gpu, 'share')}" if gpu is not None else "GPU utilisation unknown"],
    )


def _pace(slow: Arm, fast: Arm) -> tuple[Quoted, Quoted] | None:
    for name in ("itl", "tpot", "chunk_gap"):
        for stat in (*CENTRAL, "p95", "p99"):
            one, two = figure(slow, name, stats=(stat,)), figure(fast, name, stats=(stat,))
            if one is not None and two is not None and two.value > 0:
                return one, two
    return None


def _slower(one: Arm, two: Arm) -> tuple[Arm, Quoted, Arm, Quoted, float] | None:
    for name in ("output_tok_s", "decode_tok_s", "req_s"):
        first, second = figure(one, name), figure(two, name)
        if first is None or second is None or min(first.value, second.value) <= 0:
            continue
        ratio = max(first.value, second.value) / min(first.value, second.value)
        if ratio < SLOWER:
            return None
        return (one, first, two, second, ratio) if first.value < second.value else (two, second, one, first, ratio)
    return None
