"""MIX_CACHE_MISS: prompts repeat and their prefix is not found, so every one is computed whole."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arm_evidence.misses_by_turn import turns_in_arms
from tailrace.diagnose.arm_evidence.routing_words import of_routing
from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import as_share, figure, number_stated, told, worded
from tailrace.diagnose.arms.pairs import change_shown, changed
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number
from tailrace.diagnose.observed import Arm, Counter, Observed, Quoted, Setting
from tailrace.diagnose.shorter_prompts import shorter_prompts
from tailrace.model.finding import Evidence, Finding, Level, Proof

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["misses_observed"]

SHORT: Final = 0.2
"""The hit rate lies so far below what repeats."""
LEAST: Final = 3
LOW: Final = 0.3
"""With repeats that nobody counted, a hit rate below this is low."""
_FOUND: Final = re.compile(r"prefix_found|prefix_(?:cache_)?hits|prefix_hit_tokens|cached_tokens")
_ASKED: Final = re.compile(r"prefix_queried|prefix_(?:cache_)?queries|prefix_query_tokens")
_REPEATS: Final = re.compile(
    r"identical|same (?:prompt|context|document|prefix|system)|re-?sent|sent again|repeat|multi[ -]?turn|conversation|"
    r"shared prefix|again",
    re.IGNORECASE,
)


class _Hits(NamedTuple):
    """Hit tokens of all that were asked for, in one window or arm."""

    name: str
    share: float
    hits: float | None
    asked: float | None
    evidence: list[Evidence]
    arm: Arm | None

    @property
    def words(self) -> str:
        counted = (
            f" ({number(self.hits)} of {number(self.asked)} tokens)"
            if self.hits is not None and self.asked is not None
            else ""
        )
        return f"{number(self.share, 'share')}{counted}"


def misses_observed(cause: Cause, observed: Observed) -> Finding | None:
    """Counters, arms or statements against the repeats that are stated."""
    seen = _seen(observed)
    if not seen:
        return None
    worst = min(seen, key=lambda item: item.share)
    best = max(seen, key=lambda item: item.share)
    offered, repeats = _offered(observed), _repeats(observed)
    wanted = offered[0] if offered is not None else best.share if best.share - worst.share >= SHORT else None
    if wanted is not None and worst.share > wanted - SHORT:
        return None
    sessions = _sessions(observed) if offered is None and not repeats else []
    if wanted is None and (worst.share > LOW or not (repeats or sessions)):
        return None
    if (
        offered is None
        and not repeats
        and best is not worst
        and of_routing(f"{changed(observed)} {worst.name} {best.name}")
    ):
        return None  # scattered by a router: another cause
    lifetime = number_stated(observed, r"lifetime")
    missing = [] if offered is not None or repeats else ["how much of the prompts repeats in both arms"]
    slower = _slower(worst.arm, best.arm)
    evidence = [*worst.evidence, *(best.evidence if best is not worst else [])]
    if offered is not None:
        evidence.append(evidence_of_setting(offered[1]))
    evidence += [*(evidence_of_setting(item) for item in repeats), *sessions]
    if slower is not None and worst.arm is not None and best.arm is not None:
        evidence += [evidence_of(worst.arm, slower[0]), evidence_of(best.arm, slower[1])]
    cold = _cold(observed)
    usage = number_stated(observed, r"kv usage")
    evidence += [evidence_of_setting(item) for item in (cold, usage, lifetime) if item is not None]
    what = changed(observed)
    evidence += change_shown(observed)
    proven = best is not worst and bool(what) and slower is not None and not missing
    against = (
        f", though {number(wanted, 'share')} of them repeat"
        if offered is not None and wanted is not None
        else (f" against {best.words} with {best.name}" if best is not worst else ", though the prompts repeat")
    )
    computed = "every prompt is computed whole" if worst.share < SHORT else "what is not hit is computed again"
    return cause.finding(
        statement="Prefix hits over the window are "
        f"{worst.words}{f' with {worst.name}' if worst.name else ''}{against}: {computed}. That is eviction, block "
        "alignment or a switch, not the mix.",
        evidence=evidence,
        explains_ms=None if slower is None else slower[0].value - slower[1].value if slower[0].unit == "ms" else None,
        relation=(
            f"hits / queries = {number(worst.hits)} / {number(worst.asked)} = {worst.share:.1%}"
            if worst.hits is not None and worst.asked
            else f"hit rate {worst.share:.1%}"
        )
        + (f"; {wanted:.1%} {'offered' if offered is not None else 'with ' + best.name}" if wanted is not None else ""),
        n=len(seen),
        advice="Look for what evicts or misaligns the prefix: prefix caching switched off (vLLM: "
        "--enable-prefix-caching; "
        "SGLang: --disable-radix-cache must be absent), sliding-window or hybrid layers, a changing beginning (time, "
        "session id) in the prompt, too little KV cache for all prefixes; keep the shared part first and unchanged. "
        "Until then: " + shorter_prompts(),
        price="Cached prefixes take KV cache from running requests.",
        verify=again(worst.arm, more="--shared-prefix 2000"),
        missing=missing,
        rivals=["LB_CACHE_AFFINITY_LOST"] if missing else [],
        disproof_checked=[
            f"offered repeats {number(offered[0], 'share')}"
            if offered is not None
            else "the prompts are stated to repeat"
            if repeats
            else "what repeats in the prompts is not stated",
            *(
                [
                    f"KV usage {usage.number:g}: the cache is not full"
                    if usage is not None and usage.number is not None and usage.number < 90
                    else ""
                ]
                if usage is not None
                else []
            ),
        ],
        level=Level.PROVEN if proven else None,
        proof=Proof.ONE_CHANGE,
    )


def _seen(observed: Observed) -> list[_Hits]:
    out = []
    # By window: hours of scrapes are thousands of them.
    queries: dict[int, list[Counter]] = {}
    for item in observed.counters:
        if _ASKED.search(item.name) and item.delta:
            queries.setdefault(item.order, []).append(item)
    for hits in observed.counters:
        if not _FOUND.search(hits.name) or hits.delta is None:
            continue
        asked = next((item for item in queries.get(hits.order, ()) if item.labels == hits.labels), None)
        if asked is None or not asked.delta:
            continue
        out.append(
            _Hits(
                "", hits.delta / asked.delta, hits.delta, asked.delta,
                [
                    Evidence(f"{hits.raw or hits.name}: +{number(hits.delta)} "
                             "tokens", str(hits.place), hits.name, hits.delta, "tokens"),
                    Evidence(f"{asked.raw or asked.name}: +{number(asked.delta)} "
                             "tokens", str(asked.place), asked.name, asked.delta, "tokens"),
                ],
                None,
            )
        )  # fmt: skip
    # Turns of one conversation are no arms of a comparison: the first has nothing to find.
    for arm in [] if turns_in_arms(observed) else observed.arms:
        found = _of_arm(arm)
        if found is not None:
            out.append(found)
    return out or _of_settings(observed) or _of_batches(observed) or _of_requests(observed) or _of_gauge(observed)


def _of_arm(arm: Arm) -> _Hits | None:
    hits = figure(arm, "prefix_hit_tokens")
    asked = figure(arm, "prefix_query_tokens", "prompt_tokens", "total_prompt_tokens")
    asked = worded(arm, r"^total$|\basked|looked up") if asked is None else asked
    if hits is not None and asked is not None and 0 <= hits.value <= asked.value and asked.value > 0:
        return _Hits(
            arm.name,
            hits.value / asked.value,
            hits.value,
            asked.value,
            [evidence_of(arm, hits), evidence_of(arm, asked)],
            arm,
        )
    rate = figure(arm, "prefix_hit")
    return None if rate is None else _Hits(arm.name, rate.value, None, None, [evidence_of(arm, rate)], arm)


def _of_batches(observed: Observed) -> list[_Hits]:
    """SGLang's prefill lines: new and cached tokens of each batch, over all of them but the first prompt."""
    for new in observed.of_series("new_tokens"):
        cached = next(
            (one for one in observed.of_series("cached_tokens", **new.labels) if one.place == new.place), None
        )
        if cached is None or len(cached) != len(new) or len(new) < LEAST:
            continue
        hits, computed = float(np.nansum(cached.values)), float(np.nansum(new.values))
        if hits + computed <= 0:
            continue
        usual = float(np.median(cached.values[cached.values > 0])) if (cached.values > 0).any() else 0.0
        return [
            _Hits(
                "", hits / (hits + computed), hits, hits + computed,
                [
                    Evidence(f"{len(new)} prefill lines: {number(computed)} tokens computed, {number(hits)} cached "
                             f"(usually {number(usual)} in one)", str(new.place), "cached_tokens", hits, "tokens"),
                    Evidence(f"{number(hits)} / {number(hits + computed)} = {hits / (hits + computed):.2%}", "computed",
                             "hit_share", hits / (hits + computed)),
                ],
                None,
            )
        ]  # fmt: skip
    return []


def _of_requests(observed: Observed) -> list[_Hits]:
    """Cached and prompt tokens of requests, where a session's prompts or the form say that they repeat."""
    for rows in observed.table("requests"):
        if not rows.has("cached_tokens") or not rows.has("prompt_tokens") or len(set(rows.texts("arm"))) > 1:
            continue
        cached, asked = rows.numbers("cached_tokens"), rows.numbers("prompt_tokens")
        known = np.isfinite(cached) & np.isfinite(asked)
        later = known.copy()
        seen: set[str] = set()
        for row, session in enumerate(rows.texts("session_id")):
            later[row] &= session in seen or not rows.has("session_id")  # a session's first turn has nothing to find
            seen.add(session)
        if later.sum() < LEAST or float(asked[later].sum()) <= 0:
            continue
        hits, whole = float(cached[later].sum()), float(asked[later].sum())
        words = f"{int(later.sum())} requests" + (
            " that follow another of their session" if rows.has("session_id") else ""
        )
        return [
            _Hits("", hits / whole, hits, whole,
                  [Evidence(f"{words}: {number(hits)} of {number(whole)} prompt tokens were cached",
                            str(rows.place), "cached_tokens", hits, "tokens")], None)
        ]  # fmt: skip
    return []


def _of_gauge(observed: Observed) -> list[_Hits]:
    """The rate that a log prints is of the lifetime: where it was never higher, the window's is as low."""
    for series in observed.of_series("prefix_hit"):
        values = series.values[np.isfinite(series.values)]
        if values.size >= LEAST:
            top = float(values.max())
            words = f"prefix hit rate at most {number(top, 'share')} in {values.size} readings"
            return [_Hits("", top, None, None, [Evidence(words, str(series.place), "prefix_hit", top, "share")], None)]
    return []


def _sessions(observed: Observed) -> list[Evidence]:
    """Sessions whose prompts grow from turn to turn: each holds the one before."""
    for rows in observed.table("requests"):
        if not rows.has("session_id") or not rows.has("prompt_tokens"):
            continue
        tokens = rows.numbers("prompt_tokens")
        grows = [
            name
            for name, members in rows.members("session_id").items()
            if name and members.size >= LEAST and bool((np.diff(tokens[members]) >= 0).all())
        ]
        if grows:
            words = f"{len(grows)} session{'s' if len(grows) > 1 else ''} of {LEAST} turns and more whose prompts grow"
            return [Evidence(words, str(rows.place), "sessions", float(len(grows)))]
    return []


def _of_settings(observed: Observed) -> list[_Hits]:
    hits, asked = (
        number_stated(observed, r"hit tokens|^hits$|prefix hits|cached tokens"),
        number_stated(observed, r"query tokens|queries|total tokens|tokens asked"),
    )
    turns = _listed(observed, r"cached|hit tokens|hits\b"), _listed(observed, r"prompt|input|query|queried")
    if (hits is None or asked is None) and turns[0] is not None and turns[1] is not None:
        found, whole = sum(turns[0][1][1:]), sum(turns[1][1][1:])  # the first prompt has nothing to find
        if len(turns[0][1]) == len(turns[1][1]) and whole > 0:
            shown = [evidence_of_setting(turns[0][0]), evidence_of_setting(turns[1][0])]
            return [_Hits("", found / whole, found, whole, shown, None)]
    if hits is not None and asked is not None and hits.number is not None and asked.number:
        return [
            _Hits(
                "",
                hits.number / asked.number,
                hits.number,
                asked.number,
                [evidence_of_setting(hits), evidence_of_setting(asked)],
                None,
            )
        ]
    rate = number_stated(observed, r"^(?:prefix )?(?:cache )?hit(?: rate)?(?: pct)?$")
    if rate is None or rate.number is None:
        return []
    share = as_share(rate.number, rate.unit)
    return [_Hits("", share, None, None, [evidence_of_setting(rate)], None)]


def _listed(observed: Observed, words: str) -> tuple[Setting, list[float]] | None:
    """A list of numbers of that name, one a turn."""
    for item in told(observed):
        if isinstance(item.value, list) and len(item.value) >= LEAST and re.search(words, item.name.replace("_", " ")):
            values = [float(one) for one in item.value if isinstance(one, (int, float)) and not isinstance(one, bool)]
            if len(values) == len(item.value):
                return item, values
    return None


def _offered(observed: Observed) -> tuple[float, Setting] | None:
    found = number_stated(observed, r"repeat ratio|reuse|repeat(?:ed)? share|shared share")
    if found is None or found.number is None:
        return None
    share = as_share(found.number, found.unit)
    return share, found


def _repeats(observed: Observed) -> list[Setting]:
    return [item for item in told(observed) if isinstance(item.value, str) and _REPEATS.search(item.value)][:2]


def _cold(observed: Observed) -> Setting | None:
    return number_stated(observed, r"cold prefill|cold ttft|uncached")


def _slower(low: Arm | None, high: Arm | None) -> tuple[Quoted, Quoted] | None:
    """(of the arm with few hits, of the one with many) the first time that is longer without hits."""
    if low is None or high is None or low is high:
        return None
    for name in ("ttft", "prefill", "e2e", "duration", "wall", "wall_s"):
        for stat in ("p50", "mean", "", "p99", "p95"):
            one, two = figure(low, name, stats=(stat,)), figure(high, name, stats=(stat,))
            if one is not None and two is not None and one.value > 1.1 * two.value:
                return one, two
    return None
