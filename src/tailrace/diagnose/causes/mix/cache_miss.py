"""MIX_CACHE_MISS: prompts that repeat are computed anew: the prefix cache does not find them."""

from __future__ import annotations

import math
import re
from typing import ClassVar, Final, NamedTuple

from tailrace.diagnose.arm_evidence.misses_by_turn import misses_by_turn
from tailrace.diagnose.arm_evidence.misses_observed import misses_observed
from tailrace.diagnose.arms.asked import as_share
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.kv_cache import KV_CLEAR
from tailrace.diagnose.log_evidence.hits_fall import hits_fall_in_load
from tailrace.diagnose.log_evidence.lost_prompt_cache import lost_prompt_cache
from tailrace.diagnose.observed import Observed, Setting
from tailrace.diagnose.record_evidence.missed_cache import counted_hits, missed_in_records
from tailrace.diagnose.reuse import reuse
from tailrace.diagnose.series_evidence.hits_stop_in_requests import hits_stop_in_requests
from tailrace.diagnose.series_evidence.repeats_in_requests import repeats_in_requests
from tailrace.diagnose.shorter_prompts import shorter_prompts
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["CacheMiss"]

LOW: Final = 0.2
"""A hit rate below it misses nearly everything."""
OF_OFFERED: Final = 0.5
"""Of the share that repeats, what should at least be found."""
LEAST_TOKENS: Final = 2000
_REPEATED: Final = re.compile(
    r"identical|same (?:prompt|context|system|prefix|document)|sent again|re-?sent|repeat|again|shared "
    r"prefix|multi[- ]?turn|"
    r"same session",
    re.IGNORECASE,
)
_WHERE_SAID: Final = frozenset({"prompts", "workload", "traffic", "load", "same", "prompt_mix", "dataset", "mix"})


class _Window(NamedTuple):
    """Tokens looked up and found in the window, and since the engine's start."""

    queried: float
    found: float
    all_queried: float
    all_found: float
    lifetime: bool
    place: str

    @property
    def rate(self) -> float:
        return self.found / self.queried

    @property
    def lifetime_rate(self) -> float:
        return self.all_found / self.all_queried if self.all_queried else 0.0


class CacheMiss(Cause):
    """The share of prompt tokens found in the prefix cache over the window is far below what repeats."""

    code: ClassVar[str] = "MIX_CACHE_MISS"
    stage: ClassVar[str] = "prefill"
    needs: ClassVar[tuple[str, ...]] = ("the prefix cache's counters at two moments", "how much of the prompts repeats")
    disproof: ClassVar[str] = "The share of prompts that repeats fell as well: then the mix changed, not the cache."
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """The cache must be visible."""
        if reuse(evidence.now).known or counted_hits(evidence) is not None:
            return ""
        return "cached tokens of the requests (usage.prompt_tokens_details), or two scrapes of the cache's counters"

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and scrapes."""
        return missed_in_records(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """From counters, tables and forms; from an engine that logs it."""
        observing = (misses_observed, misses_by_turn, lost_prompt_cache, hits_fall_in_load, hits_stop_in_requests,
                     repeats_in_requests)  # fmt: skip
        return surest([self._observed(observed), *(look(self, observed) for look in observing)])

    def _observed(self, observed: Observed) -> Finding | None:
        """Counter deltas, against what was offered."""
        window = _window(observed)
        if window is None or window.queried < LEAST_TOKENS:
            return None
        offered, where = _offered(observed)
        bar = OF_OFFERED * offered if offered is not None else LOW
        if window.rate >= bar or (offered is not None and offered < LOW):
            return None
        if offered is None and window.lifetime:
            return None  # a low rate since the start, of prompts that nobody says repeat, is no news
        return self._found(observed, window, offered, where)

    def _found(self, observed: Observed, window: _Window, offered: float | None, where: Setting | None) -> Finding:
        missing = []
        if window.lifetime:
            missing.append("a second scrape: these counters are since the engine's start, and hide the window")
        if where is None:
            missing.append("how much of the prompts repeats (repeat_ratio_offered): without it a miss may be the mix")
        rate = f"{window.rate * 100:.1f} %" if window.found else "0 %"
        whole = f"{window.lifetime_rate * 100:.1f} %"
        queried, found = f"{window.queried:.0f}", f"{window.found:.0f}"
        kv = _kv(observed)
        roomy = kv is not None and kv < KV_CLEAR
        why = (
            "the cache is not full, so blocks were not evicted for want of room: look at the block alignment of the "
            "prefix "
            "(a changing first token, a date in the system prompt, a block longer than the shared part) or at an "
            "engine that "
            "throws cached blocks away (sliding windows)"
            if roomy
            else "blocks are evicted before they are asked for again, or the prefixes do not line up with the cache's "
            "blocks"
        )
        evidence = [
            Evidence(
                text=f"{found} of {queried} prompt tokens of the window were found in the prefix cache: {rate}",
                source=window.place,
                name="prefix_hit",
                value=round(window.rate, 4),
                unit="share",
            )
        ]
        if not window.lifetime and window.all_queried > window.queried:
            evidence.append(
                Evidence(
                    text=f"since the engine's start it is {whole}: {window.all_found:.0f} of "
                    f"{window.all_queried:.0f}, which "
                    "hides the window",
                    source=window.place,
                    name="prefix_hit_lifetime",
                    value=round(window.lifetime_rate, 4),
                    unit="share",
                )
            )
        if where is not None:
            evidence.append(
                Evidence(text=f"what was sent: {where.name} = {where.value}", source=str(where.place), name="repeat")
            )
        if kv is not None:
            evidence.append(
                Evidence(text=f"KV usage {kv * 100:.0f} %", source=_kv_source(observed), name="kv_usage", value=kv)
            )
        cold = observed.number("cold_prefill_ttft_ms")
        repeats = (
            f" although {offered * 100:.0f} % of it was offered again" if offered is not None and offered < 1 else ""
        )
        again = " although the same prompts were sent again" if where is not None and not repeats else repeats
        if repeats and offered is not None and where is not None:
            evidence.append(
                Evidence(text=f"{offered * 100:.0f} % of the tokens were offered again", source=str(where.place))
            )
        return self.finding(
            statement=f"The prefix cache misses: {found} of {queried} prompt tokens were found in it "
            f"({rate}){again}. Each "
            f"request pays for a cold prefill; {why}.",
            evidence=evidence,
            explains_ms=cold,
            relation=f"{found}/{queried} = {rate} over the window"
            + ("" if window.lifetime else f"; lifetime {window.all_found:.0f}/{window.all_queried:.0f} = {whole}"),
            n=int(window.queried),
            advice="Is prefix caching on (vLLM: `--enable-prefix-caching`, SGLang: no `--disable-radix-cache`)? Keep "
            "what is "
            "shared at the front, byte for byte, at least one block long; send a session to the replica that has it; "
            "give "
            "the cache room (`--gpu-memory-utilization`, `--max-num-seqs` lower, KV offloading); try another version "
            "where "
            "repeated prompts miss in an empty cache. A shorter context costs less when it misses. "
            + shorter_prompts(rate=observed.number("prefill_tok_s")),
            price="Affinity by session makes load uneven; more cache means fewer requests at once.",
            verify="tailrace diagnose before.prom after.prom  # two scrapes around the same prompts sent twice",
            missing=missing,
            disproof_checked=[
                "prompts repeat as before" if where is not None else "whether prompts repeat is not known"
            ],
            level=Level.SUSPECTED if missing else Level.CONSISTENT,
        )


def _window(observed: Observed) -> _Window | None:
    found, queried = observed.of_counter("prefix_found"), observed.of_counter("prefix_queried")
    missed = observed.of_counter("prefix_missed")
    if not found or not (queried or missed):
        return None
    lifetime = all(item.delta is None for item in found)

    def of(items: list, *, whole: bool) -> float:  # type: ignore[type-arg]
        if whole:
            last = max((item.order for item in items), default=0)
            return float(sum(item.last for item in items if item.order == last))
        return float(sum(item.last if lifetime else (item.delta or 0.0) for item in items))

    hit, all_hit = of(found, whole=False), of(found, whole=True)
    asked, all_asked = (
        (of(queried, whole=False), of(queried, whole=True))
        if queried
        else (of(missed, whole=False) + hit, of(missed, whole=True) + all_hit)
    )
    if asked <= 0 or not math.isfinite(asked + hit + all_asked + all_hit):
        return None
    return _Window(asked, min(hit, asked), all_asked, all_hit, lifetime, str((queried or missed)[-1].place))


def _offered(observed: Observed) -> tuple[float | None, Setting | None]:
    """(share of the tokens that repeats, who says so); 1 where words say that the same was sent again."""
    for name in ("repeat_ratio_offered", "repeat_ratio", "shared_prefix_share", "prefix_share"):
        found = observed.setting(name)
        if found is not None and found.number is not None:
            return as_share(found.number, found.unit), found
    for setting in observed.settings:
        if isinstance(setting.value, str) and setting.name in _WHERE_SAID and _REPEATED.search(setting.value):
            return 1.0, setting
    return None, None


def _kv(observed: Observed) -> float | None:
    values = [float(item.values.max()) for item in observed.of_series("kv_usage") if len(item)]
    if values:
        return max(values)
    stated = observed.number("kv_usage_pct")
    return None if stated is None else stated / 100.0


def _kv_source(observed: Observed) -> str:
    found = observed.of_series("kv_usage")
    if found:
        return str(found[0].place)
    return observed.source_of("kv_usage_pct")
