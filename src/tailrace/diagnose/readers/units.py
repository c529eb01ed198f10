"""The units that people write, in one spelling each."""

from __future__ import annotations

from typing import Final

__all__ = ["unit_of"]

_SPELLINGS: Final[dict[str, tuple[str, ...]]] = {
    "ns": ("ns", "nsec", "nanosecond", "nanoseconds"),
    "us": ("us", "µs", "usec", "usecs", "microsecond", "microseconds"),
    "ms": ("ms", "msec", "msecs", "millisecond", "milliseconds", "millis"),
    "s": ("s", "sec", "secs", "second", "seconds"),
    "min": ("min", "mins", "minute", "minutes"),
    "h": ("h", "hour", "hours"),
    "%": ("%", "pct", "percent", "perc"),
    "tok/s": ("tok/s", "tokens/s", "token/s", "toks/s", "t/s", "tok/sec", "tokens/sec", "tps", "tokens per second"),
    "1/s": ("1/s", "req/s", "reqs/s", "requests/s", "request/s", "req/sec", "requests/sec", "rps", "qps", "infer/sec"),
    "tokens": ("tokens", "tok", "toks", "token"),
    "MHz": ("mhz",),
    "GHz": ("ghz",),
    "W": ("w", "watt", "watts"),
    "C": ("c", "°c", "℃", "celsius"),
    "x": ("x",),
    "GiB": ("gib", "gb"),
}
_BY_SPELLING: Final = {word: unit for unit, words in _SPELLINGS.items() for word in words}


def unit_of(text: str) -> str:
    """The unit that `text` names, in one spelling; empty when it names none."""
    return _BY_SPELLING.get(" ".join(text.lower().split()).rstrip("."), "")
