"""A lane's keys for its streams: the gap limit and the least pace."""

from __future__ import annotations

from tailrace.gateway.config_values import Duration, Section, lasting
from tailrace.govern.stream_guard import GapAction, StreamGuard
from tailrace.model.errors import ConfigError
from tailrace.model.thresholds import MS, S

_SHORTEST_GAP_NS = 100 * MS
"""Two sweeps: what is shorter is over before anybody looks."""


class GapConfig(Section):
    """What becomes of a stream that stands still in the middle."""

    limit: Duration = lasting(500 * MS)
    """The longest time between two tokens; noticed up to 50 ms later."""
    action: GapAction = GapAction.WARN
    """`warn` tells and counts it, `degrade` lets it press the degradation ladder too, `abort` ends the stream too."""


class PaceConfig(Section):
    """What becomes of a stream that trickles. Each of its tokens may come well within the idle budget."""

    min_tokens_per_s: float
    """Below it, the stream is ended with an error event."""
    window: Duration = lasting(5 * S)
    """Over which the pace is measured, from the first token on."""


def stream_guard(gap: GapConfig | None, pace: PaceConfig | None) -> StreamGuard | None:
    """As the governor reads them; `None` where nothing is demanded."""
    if gap is None and pace is None:
        return None
    return StreamGuard(
        gap_ns=None if gap is None else int(gap.limit),
        gap_action=GapAction.WARN if gap is None else gap.action,
        tokens_per_s=None if pace is None else pace.min_tokens_per_s,
        window_ns=5 * S if pace is None else int(pace.window),
    )


def check_guard(gap: GapConfig | None, pace: PaceConfig | None, *, idle: Duration, place: str) -> None:
    """Refuse limits that cannot be kept or never apply. Raises `ConfigError`."""
    if gap is not None and gap.limit < _SHORTEST_GAP_NS:
        raise ConfigError(
            f"a gap of {gap.limit / MS:g} ms is over before anybody looks",
            place=f"{place}.gap.limit",
            remedy="Write at least `100ms`; the record of a request has all its gaps.",
        )
    if gap is not None and gap.limit >= idle:
        raise ConfigError(
            f"the idle budget of {idle / S:g} s ends the stream before a gap of {gap.limit / S:g} s is one",
            place=f"{place}.gap.limit",
            remedy="Write a limit below `budgets.idle`, or leave `gap` out.",
        )
    if pace is not None and pace.min_tokens_per_s <= 0:
        raise ConfigError(
            f"{pace.min_tokens_per_s:g} tokens/s demands nothing",
            place=f"{place}.pace.min_tokens_per_s",
            remedy="Write a number above 0, or leave `pace` out.",
        )
    if pace is not None and pace.window < S:
        raise ConfigError(
            f"no pace can be measured over {pace.window / MS:g} ms",
            place=f"{place}.pace.window",
            remedy="Write at least `1s`.",
        )
