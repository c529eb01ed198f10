"""What to collect next, by what was given: the number that is missing, never "more data"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from tailrace.diagnose.collect_by_hints import by_hints
from tailrace.diagnose.collect_on_the_way import on_the_way
from tailrace.diagnose.observed import Arm, Observed, Role
from tailrace.diagnose.observed.vocabulary import QUANTITIES
from tailrace.diagnose.speech_evidence.turns import turns_of
from tailrace.stats.quantiles import needed, supported

__all__ = ["sample_notes", "what_to_collect"]

_FIRST: Final = ("ttft", "queue", "prefill")
_PACE: Final = ("tpot", "itl", "chunk_gap", "decode_tok_s")
_MOST: Final = 8
_PARTS: Final = {"llm_ttft": "the LLM's first token", "tts_ttfb": "the voice's first audio",
                 "transcription_delay": "the transcription"}  # fmt: skip
MOST_OF: Final = 0.5
LATE_MS: Final = 1000.0
ACCEPTED_LESS: Final = 0.6
FEWEST: Final = 3


def what_to_collect(observed: Observed) -> list[str]:
    """In the order in which it helps."""
    out: list[str] = []
    if not _numbers(observed):
        out.append(
            "the numbers as text: a picture cannot be read, and numbers in sentences are given as facts "
            "(--facts ttft_p99_ms=850 --facts n=1000, or --ask)"
        )
    out += _of_ends(observed)
    out += by_hints(observed)
    out += on_the_way(observed)
    out += _of_scrapes(observed)
    out += _of_turns(observed)
    out += _of_speculation(observed)
    out += _of_arms(observed.arms)
    if not observed.table("requests"):
        out.append(
            "the requests one by one, as CSV or JSONL: send, first token, last token, tokens (vLLM's benchmark: "
            "--save-result --save-detailed, SGLang's: --output-details, GuideLLM: its JSON)"
        )
    if not (observed.series or observed.counters or observed.events):
        out.append(
            "the engine's log of the slow window, or two scrapes of its /metrics (preemptions, running, waiting, "
            "queue time)"
        )
    elif not observed.counters:
        out.append("two scrapes of /metrics around the slow window: preemptions, queue time, cache hits as counters")
    return out[:_MOST]


def _of_scrapes(observed: Observed) -> list[str]:
    """What one scrape, or a window that a restart cut, lacks."""
    if any(item.restarted for item in observed.counters):
        return ["two scrapes of /metrics without a restart between them: these counters began anew"]
    lifetime = [item.lifetime for item in observed.counters] + [item.lifetime for item in observed.histograms]
    if lifetime and all(lifetime):
        return [
            "a second scrape of /metrics, from the other end of the slow window: one holds everything since the start"
        ]
    return []


def _of_ends(observed: Observed) -> list[str]:
    """An engine that died is no slow one: its own words are wanted first."""
    died, memory = observed.of_kind("died"), observed.of_kind("oom")
    first = next(iter((*died, *memory)), None)
    if first is None:
        return []
    words = (
        f"why the engine died (“{first.text.strip()[:140]}”, {first.place}): its error and traceback from just before; "
        "requests of that moment failed for it and are no matter of latency"
    )
    return [words]


def _of_speculation(observed: Observed) -> list[str]:
    """Drafts that are accepted far less than before make every stream slower, and no rule knows why they are."""
    for series in observed.of_series("accept_length"):
        known = series.values[np.isfinite(series.values)]
        part = known.size // 3
        if part < FEWEST:
            continue
        early, late = float(np.median(known[:part])), float(np.median(known[-part:]))
        if late < ACCEPTED_LESS * early:
            words = (
                f"what changed when the drafts' accepted length fell from {early:.2f} to {late:.2f} tokens (other "
                "prompts, sampling, a grammar, another draft model): each step then makes so much less"
            )
            return [words]
    return []


def _of_turns(observed: Observed) -> list[str]:
    """Of turns of a voice agent, whose own evidence is wanted: the part that takes most of them."""
    out = []
    for turns in turns_of(observed):
        parts = {words: turns.get(name) for name, words in _PARTS.items() if turns.has(name)}
        whole = turns.get("total") if turns.has("total") else np.nansum(list(parts.values()), axis=0) if parts else None
        for words, values in parts.items():
            known = np.isfinite(values)
            share = float(values[known].sum() / max(float(np.nansum(np.asarray(whole)[known])), 1e-9))
            if share > MOST_OF and float(np.median(values[known])) > LATE_MS:
                low, high = float(values[known].min()) / 1e3, float(values[known].max()) / 1e3
                out.append(
                    f"what {words} waits for: it takes {low:.2f} to {high:.2f} s in {int(known.sum())} turns, "
                    f"{share:.0%} of their delay (its queue and prefill: the engine's records, log or /metrics, or the "
                    "provider's own timing)"
                )
    for item in observed.settings:
        part = item.name.removeprefix("speech.").removesuffix(".time_to_connect")
        if item.name.endswith(".time_to_connect") and (item.number or 0.0) > LATE_MS:
            out.append(
                f"why connecting the {part} takes {(item.number or 0.0) / 1e3:.2f} s (its network way, its TLS, a cold "
                "start): the first turn waits for it; open it when the call begins"
            )
    return out


def _numbers(observed: Observed) -> bool:
    numeric = any(item.number is not None for item in observed.settings)
    return bool(
        observed.arms or observed.series or observed.counters or observed.histograms or observed.rows or observed.events
        or numeric
    )  # fmt: skip


def _of_arms(arms: list[Arm]) -> list[str]:
    if not arms:
        return []
    out = []
    has = {quoted.quantity for arm in arms for quoted in arm.values.values()}
    caps = {arm.keys.get("max_num_seqs") for arm in arms} | {arm.keys.get("max_num_batched_tokens") for arm in arms}
    if len(caps - {None}) > 1 and not has & {"queue", "ttft"}:
        out.append(
            "queue time (or TTFT) and throughput of each arm: whether another limit pays cannot be told from the "
            "pace of "
            "tokens alone"
        )
    elif not has & set(_FIRST):
        out.append("TTFT and queue time of each arm: whether requests wait or are slow")
    if not has & set(_PACE) and not has & {"rtf", "rtfx"}:
        out.append("TPOT or ITL of each arm: whether the stream is slow too")
    if not any(quoted.stat in {"p95", "p99", "p999"} for arm in arms for quoted in arm.values.values()):
        out.append("p99 of each arm, with n: a mean does not show a tail")
    if len(arms) == 2 and not any(arm.role for arm in arms):
        out.append(f"which of the two is from before ({arms[0].name}, {arms[1].name}), and what was changed")
    unitless = sorted(
        {
            quoted.label or quoted.key
            for arm in arms
            for quoted in arm.values.values()
            if _asks_unit(quoted.quantity, quoted.unit)
        }
    )
    if unitless:
        out.insert(0, f"the unit of: {', '.join(unitless[:4])}")
    if any(arm.role is not Role.NONE for arm in arms) and "n" not in has:
        out.append(f"n of each arm: a p99 needs {needed(0.99)} requests")
    return out


def _asks_unit(quantity: str, unit: str) -> bool:
    known = QUANTITIES.get(quantity)
    return not unit and known is not None and known.unit in {"ms", "s"}


def sample_notes(arms: Iterable[Arm]) -> list[str]:
    """Quantiles that rest on too few values: there the p99 is about the maximum."""
    out = []
    for arm in arms:
        n = arm.get("n")
        tails = {quoted.stat for quoted in arm.values.values() if quoted.stat in {"p99", "p999"}}
        if n is None or not tails:
            continue
        for stat, p in (("p99", 0.99), ("p999", 0.999)):
            if stat in tails and not supported(p, int(n)):
                out.append(
                    f"{stat} of {arm.name} rests on {max(n * (1 - p), 0):.2g} of n = {n:.0f} values; {needed(p)} "
                    "support one"
                )
    return out[:4]
