"""What a heading says: a quantity, a statistic, a unit, in any order, and the words that are none of them.

`TTFT p50 (ms)`, `p99 TTFT [s]`, `ttft_p95_ms`, `99th percentile of the time to first token, ms`, `GPU util 1 s after
disconnect (%)` and `change vs baseline (%)` are headings.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import msgspec

from tailrace.diagnose.observed.vocabulary import QUANTITIES, TO_MS, Quantity, phrase_in
from tailrace.diagnose.readers.units import unit_of

__all__ = ["Heading", "heading", "in_cell", "plain", "snake", "stat_of", "statistic"]

_LONGEST: Final = 160
"""A longer heading is a sentence: only so much of it is looked at."""
_MARKS: Final = re.compile(r"\*\*|__(?=\S)|(?<=\S)__|`|\*|<br\s*/?>|</?[a-z]{1,6}>|[↓↑⬇⬆]")
_MARKED: Final = re.compile(r"[*_`<&\\↓↑⬇⬆]")
_JOINED: Final = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])|(?<=[a-z]{2})(?=P\d)|(?<=\d)(?=Ms$)|(?<=[A-Za-z])\.(?=[A-Za-z])")
"""Where the words of `timeToFirstToken` and `latency.ttft.p50` meet."""
_GROUPS: Final = frozenset(
    {"latency", "latencies", "metrics", "stats", "timing", "timings", "summary", "results", "times", "perf", "load"}
)
"""Names of groups that say nothing where their member names a quantity: `latency.ttft.p50`."""
_LINK: Final = re.compile(r"\[([^\]]{1,200})\]\([^)]{0,300}\)")
_BRACKET: Final = re.compile(r"[(\[{]([^()\[\]{}]*)[)\]}]")
_RATE: Final = re.compile(
    r"\b(tok|toks|tokens?|reqs?|requests?|queries|t)\s*(?:/|per|_)\s*(?:sec(?:onds?)?|s)(?![a-z])|\b(tps)\b"
)
_SNAKE_RATE: Final = re.compile(r"(?:^|(?<=[_ ]))(tok|toks|tokens|reqs?|requests)[_ ]s(?:ec)?(?=[_ ]|$)")
_PERCENTILE: Final = re.compile(
    r"^(?:p|q|pct|perc|percentile)[ (]?(\d{1,2}(?:[._]\d{1,3})?|999|100)\)?$"
    r"|^(\d{1,2}(?:\.\d{1,3})?)(?:th|st|nd|rd)?(?:%|%ile|p|pct|percentile)$"
    r"|^([5-9]\d(?:\.\d{1,3})?)(?:th|st|nd|rd)$"
)
_ALIKE: Final = {
    **dict.fromkeys((0x2212, 0x2010, 0x2011, 0x2012, 0x2013, 0x2014), "-"),
    0xD7: "x", 0x2019: "'", 0x3BC: "\u00b5", **dict.fromkeys((0xA0, 0x2009, 0x202F), " "), 0xFEFF: "", 0x200B: "",
}  # fmt: skip
"""Minus signs and dashes, the sign of multiplication, the Greek mu, blanks that do not break: one character each."""
_STATS: Final = {
    "mean": "mean", "avg": "mean", "average": "mean", "median": "p50", "med": "p50", "typical": "p50",
    "max": "max", "maximum": "max", "longest": "max", "worst": "max", "highest": "max",
    "min": "min", "minimum": "min", "shortest": "min", "best": "min",
    "std": "std", "stdev": "std", "stddev": "std", "sd": "std",
}  # fmt: skip
_CHANGES: Final = frozenset(
    {"change", "changes", "delta", "δ", "diff", "difference", "vs", "versus", "relative", "improvement", "reduction"}
)
_UNIT_WORDS: Final = frozenset({"ms", "msec", "us", "\u00b5s", "usec", "ns", "seconds", "milliseconds"})
"""Units that nothing else is called: they count wherever they stand (`ttft_ms_p50`)."""
_FILLERS: Final = frozenset({"of", "the", "for", "in", "percentile", "value", "time", "latency", "per", "=", "-"})
_PERCENT: Final = frozenset({"%", "pct", "percent"})
_SCALARS: Final = frozenset({"count", "1/s", "tok/s", "tokens"})


class Heading(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of it."""

    label: str
    """As it stands, without marks of emphasis."""
    quantity: str = ""
    """A name of the vocabulary; empty where it names none."""
    stat: str = ""
    unit: str = ""
    """As written, in one spelling; empty where it says none."""
    qualifier: str = ""
    """Its other words."""
    change: bool = False
    """It speaks of a change against something."""

    @property
    def key(self) -> str:
        """The quantity, or the heading itself in snake case."""
        return self.quantity or snake(self.label)

    @property
    def canonical(self) -> str:
        """The unit in which the quantity is kept; empty where it has none."""
        found = QUANTITIES.get(self.quantity)
        return found.unit if found else ""


def plain(text: str) -> str:
    """Text of a cell without Markdown's marks, links and HTML tags."""
    if len(text) > 2000:
        text = text[:2000]
    if "[" in text:
        text = _LINK.sub(r"\1", text)
    if not text.isascii():
        text = text.translate(_ALIKE)
    if _MARKED.search(text) is not None:
        text = _MARKS.sub(" " if "<" in text else "", text).replace("\\|", "|").replace("&nbsp;", " ")
    return " ".join(text.split())


def snake(text: str) -> str:
    """`GPU util (%)` -> `gpu_util`: a name for what the vocabulary does not know."""
    without = re.sub(r"[(\[][^)\]]*[)\]]", " ", text)
    return re.sub(r"[^0-9a-z]+", "_", (without if without.strip() else text).lower()).strip("_")


def statistic(word: str) -> str:
    """`p99`, `median`, `99th`, `50%` -> the statistic's name; empty when it is none."""
    word = word.lower().strip(" :.")
    if word in _STATS:
        return _STATS[word]
    found = _PERCENTILE.match(word)
    if found is None:
        return ""
    digits = next(group for group in found.groups() if group)
    digits = digits.replace("_", ".")
    return "p" + digits.replace(".", "") if digits != "100" else "max"


@lru_cache(maxsize=4096)
def heading(text: str) -> Heading:
    """Read one heading."""
    label = plain(text)[:_LONGEST]
    outer, dot, inner = label.partition(".")
    apart = _JOINED.sub(" ", inner if dot and outer.lower() in _GROUPS and heading(inner).quantity else label)
    low = re.sub(r"(?<=[a-z])(?=p\d\d)", " ", re.sub(r"p(\d\d)_(\d{1,2})(?!\d)", r"p\1.\2", apart.lower()))
    low = re.sub(r"(?<=[a-z])(?=%)", " ", low)
    low, unit, stat = _brackets(_SNAKE_RATE.sub(_rate, low).replace("_", " "))
    low = low.replace("-", " ") if "/" not in low else low
    words, divided = _words(_RATE.sub(_rate, low))
    unit = unit or divided
    if not unit and len(words) > 1:
        unit = _trailing_unit(words)
    found = _phrase(words)
    quantity = "" if found is None else found[0].name
    unit = unit or _unit_within(words, found)
    outside = words if found is None else [*words[: found[1]], *words[found[2] :]]
    left: list[str] = []
    change = False
    for word in outside:
        as_stat = "" if stat else statistic(word)
        if as_stat and (quantity or not word.startswith(("max", "min", "best", "worst"))):
            stat = as_stat
        else:
            change = change or word in _CHANGES
            left.append(word)
    if not unit and any(word in _PERCENT for word in left):
        unit, left = "%", [word for word in left if word not in _PERCENT]
    inner = next((word for word in left if word in _UNIT_WORDS), "") if (quantity or stat) and not unit else ""
    if stat == "min" and not (quantity or unit) and re.search(r"[(\[]\s*min\s*[)\]]", label.lower()):
        unit, stat = "min", ""  # `after (min)`: minutes, of no quantity that has a least value
    if inner:
        unit, left = unit_of(inner), [word for word in left if word != inner]
    if quantity == "req_s" and "tok/s" in left and "req/s" not in words:
        quantity, left = "output_tok_s", [word for word in left if word != "tok/s"]  # `throughput tok/s`
    quantity = _by_unit(quantity or _by_share(left, unit), unit)
    quantity, left = _of_test(quantity, left)
    if not quantity and stat and unit in TO_MS and left and _SIDES.issuperset(left):
        quantity = "e2e"  # `client p99 (s)`: of whole requests, as that side sees them
    if quantity == "output_tok_s" and (stat == "max" or "peak" in left):
        quantity, stat, left = "peak_output_tok_s", "", [word for word in left if word != "peak"]
    useful = bool(quantity or change) and any(word not in _FILLERS for word in left)
    return Heading(
        label=label,
        quantity=quantity,
        stat=stat_of(quantity, stat, unit),
        unit=unit,
        qualifier=" ".join(left) if useful else "",
        change=change,
    )


def _phrase(words: list[str]) -> tuple[Quantity, int, int] | None:
    """The quantity among the words; `position of the pause (token)` is where, not how long."""
    found = phrase_in(words)
    where = found is not None and found[0].name == "chunk_gap" and not _PLACES.isdisjoint(words[: found[1]])
    return None if where else found


def _of_test(quantity: str, left: list[str]) -> tuple[str, list[str]]:
    """llama-bench: `pp512 t/s` reads a prompt, `tg128 t/s` decodes."""
    test = next((word for word in left if _TESTS.fullmatch(word)), "") if quantity == "output_tok_s" else ""
    if not test:
        return quantity, left
    return "prompt_tok_s" if test.startswith("pp") else "decode_tok_s", [word for word in left if word != test]


def _unit_within(words: list[str], found: tuple[Quantity, int, int] | None) -> str:
    """`ms per token` is a quantity that says its unit itself."""
    return "ms" if found is not None and found[0].name == "tpot" and words[found[1]].startswith("ms") else ""


def in_cell(head: Heading, unit: str) -> Heading:
    """The same heading over a cell that says its unit itself: `decode` over `122 tok/s` is a rate."""
    quantity = _by_unit(head.quantity or _by_share(head.label.lower().split(), unit), unit)
    return head if quantity == head.quantity else msgspec.structs.replace(head, quantity=quantity)


def _brackets(low: str) -> tuple[str, str, str]:
    """(the text without what its brackets say of unit and statistic, the unit, the statistic)."""
    said = {"unit": "", "stat": ""}

    def bracket(found: re.Match[str]) -> str:
        rest = []
        for piece in re.split(r"[,;]", found[1]):
            part = piece.strip()
            as_stat, as_unit = statistic(part), unit_of(part.removeprefix("in ").strip())
            if as_unit and not (as_stat and as_unit == "min"):
                said["unit"] = said["unit"] or as_unit
            elif as_stat:
                said["stat"] = said["stat"] or as_stat
            elif part:
                rest.append(part)
        return f" {' '.join(rest)} "

    return _BRACKET.sub(bracket, low), said["unit"], said["stat"]


def _words(low: str) -> tuple[list[str], str]:
    """(its words, the unit of `p99/ms`)."""
    words: list[str] = []
    unit = ""
    for word in re.split(r"[\s_,:;|]+", low):
        head, slash, tail = word.rpartition("/")
        if slash and head in _UNIT_WORDS and tail.isalpha() and not tail.startswith("tok"):
            unit = unit or unit_of(head)  # `ms/step`
            words += ["per", tail]
        elif slash and head not in {"tok", "req"} and unit_of(tail) in TO_MS:
            unit = unit or unit_of(tail)
            words.append(head)
        else:
            words.append(word)
    return _joined_percentiles([word for word in words if word]), unit


def stat_of(quantity: str, stat: str, unit: str = "") -> str:
    """The limit of a count and the mean of a rate are the scalar that everybody means."""
    known = QUANTITIES.get(quantity)
    if known is None or known.unit not in _SCALARS or unit not in {"", known.unit}:
        return stat
    if known.unit == "count" and stat in {"max", "p50", "mean", "min"}:
        return ""
    return "" if stat == "mean" else stat


def _rate(found: re.Match[str]) -> str:
    return " req/s " if (found[1] or "").startswith(("req", "quer")) else " tok/s "


def _joined_percentiles(words: list[str]) -> list[str]:
    """`p 99`, `99 percentile`, `99th percentile` are one word."""
    out: list[str] = []
    for word in words:
        if out and word in {"percentile", "percentiles", "%ile"} and statistic(out[-1] + "percentile"):
            out[-1] = statistic(out[-1] + "percentile")
        elif out and out[-1] in {"p", "percentile"} and re.fullmatch(r"\d{2,3}(\.\d+)?", word):
            out[-1] = "p" + word
        else:
            out.append(word)
    return out


def _trailing_unit(words: list[str]) -> str:
    """A unit at the end that stands behind no number (`ttft ms`, `latency in s`); taken off `words`."""
    last = unit_of(words[-1])
    if last in {"", "x", "tokens", "tok/s", "1/s", "C", "W", "h", "GiB"} or words[-1] == "min":
        return ""
    if re.fullmatch(r"[\d.]+", words[-2]):
        return ""
    words.pop()
    if len(words) > 1 and words[-1] == "in":
        words.pop()
    return last


_TESTS: Final = re.compile(r"(?:pp|tg)\d+")
_PLACES: Final = frozenset({"position", "offset", "index", "place", "where", "text", "tokens"})
_PACES: Final = {"decode": "decode_tok_s", "prefill": "prompt_tok_s"}
_SHARES: Final = {"kv": "kv_usage", "gpu": "gpu_util", "error": "failed_share", "failure": "failed_share"}
"""Words that are no quantity by themselves, and one in percent."""
_WHOLES: Final = frozenset({"total", "overall", "whole", "full"})
"""`total (ms)`: of the whole request."""
_SIDES: Final = frozenset(
    {"client", "server", "gateway", "proxy", "upstream", "backend", "engine", "direct", "side", "request", "requests"}
)
"""Who measured it."""
_OFFERED: Final = frozenset({"rate", "offered", "arrival", "load", "target", "asked", "requested"})
_SERVED: Final = frozenset({"served", "achieved", "actual", "finished", "processed"})


def _by_share(words: list[str], unit: str) -> str:
    """`KV %`, `GPU%`; `rate (req/s)` of a sweep. Empty where the words alone say more."""
    if len(words) != 1:
        return ""
    if unit == "%":
        return _SHARES.get(words[0], "")
    if unit in TO_MS and words[0] in _WHOLES:
        return "e2e"
    if unit == "W" and words[0] in {"cap", "limit"}:
        return "power_limit"
    if unit == "1/s" and words[0] in _SERVED:
        return "req_s"
    return "offered_rps" if words[0] in _OFFERED and (unit == "1/s" or words[0] == "rate") else ""


_MEANT: Final = {
    ("n", "1/s"): "req_s",
    ("n", "ms"): "e2e",  # `p99 of completed (s)`
    ("n", "s"): "e2e",
    **{(name, "tok/s"): rate for name, rate in _PACES.items()},
    ("req_s", "tok/s"): "output_tok_s",
    ("output_tok_s", "1/s"): "req_s",
    ("failed", "%"): "failed_share",
    **{("waiting", unit): "queue" for unit in TO_MS},
    **{("duration", unit): "e2e" for unit in ("ms", "us", "ns")},
}


def _by_unit(quantity: str, unit: str) -> str:
    """Some words mean two things: the unit tells which."""
    return _MEANT.get((quantity, unit), quantity)
