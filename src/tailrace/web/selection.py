"""What a reader of the page chose: window, lane, metric and theme. Parsed strictly: the query comes from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

import msgspec

from tailrace.analyze.window import METRICS
from tailrace.figures.palette import Theme
from tailrace.model.errors import InputError
from tailrace.model.thresholds import S

WINDOWS_S: Final[dict[str, int | None]] = {"1m": 60, "5m": 300, "1h": 3600, "all": None}
VANTAGES: Final = ("gateway", "application")
LANE_LIMIT: Final = 200
"""Characters of a lane's name; keeps the keys of the cache small."""


def vantage_of(query: Mapping[str, str]) -> str | None:
    """The vantage that a URL's query names, if it does. InputError for one that is none."""
    vantage = query.get("vantage") or None
    if vantage is not None and vantage not in VANTAGES:
        raise InputError(f"no vantage {vantage[:40]!r}", remedy=f"Choose {', '.join(VANTAGES)}.")
    return vantage


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of choices; the key under which a built view is kept."""

    window: str = "5m"
    lane: str = ""
    """Empty: every lane."""
    metric: str = ""
    """Empty: what fits the traffic."""
    theme: Theme = "light"
    vantage: str = "gateway"
    """Whose records: the gateway's, or those of the services before it."""

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Self:
        """Read a URL's query; absent keys take their defaults, InputError names a value that is none of the choices."""
        window = query.get("window", "5m")
        if window not in WINDOWS_S:
            raise InputError(f"no window {window[:40]!r}", remedy=f"Choose {', '.join(WINDOWS_S)}.")
        metric = query.get("metric", "")
        if metric and metric not in METRICS:
            raise InputError(f"no metric {metric[:40]!r}", remedy=f"Choose {', '.join(METRICS)}.")
        theme: Theme = "dark" if query.get("theme") == "dark" else "light"
        lane = query.get("lane", "")
        if len(lane) > LANE_LIMIT:
            raise InputError("the lane's name is too long", remedy=f"It has at most {LANE_LIMIT} characters.")
        return cls(window=window, lane=lane, metric=metric, theme=theme, vantage=vantage_of(query) or "gateway")

    def since_unix_ns(self, now_unix_ns: int) -> int | None:
        """Where the window begins, `None` for all that is kept."""
        seconds = WINDOWS_S[self.window]
        return None if seconds is None else now_unix_ns - seconds * S
