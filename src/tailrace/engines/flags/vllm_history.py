"""Which options of vLLM came and went, and what its defaults were, by version.

Seen in six releases (0.6.6, 0.8.5, 0.11.0, 0.16.0, 0.22.0, 0.32.0): an option's fate is known at those, and between two
of them only that it changed. Sources: the releases' own `--help` and packages, and the project's rule that what is
deprecated in X.Y is gone in X.Y+2.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from tailrace.engines.flags.version import Version


class Fate(StrEnum):
    """What a version does with an option."""

    THERE = "there"
    GONE = "gone"
    NOT_YET = "not yet"
    UNSURE = "unsure"
    """Between two releases that were looked at."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The life of one option."""

    option: str
    last_without: Version | None = None
    """Seen absent here, before it came."""
    first_with: Version | None = None
    last_with: Version | None = None
    first_gone: Version | None = None
    instead: str = ""
    """What to write where it is gone (or not there yet)."""
    why: str = ""

    def fate(self, version: Version | None) -> Fate:
        """What `version` does with it; a version that is not known is taken for today's."""
        if self.first_gone is not None and (version is None or version >= self.first_gone):
            return Fate.GONE
        if version is None:
            return Fate.THERE
        if self.last_without is not None and version <= self.last_without:
            return Fate.NOT_YET
        if self.first_with is not None and version < self.first_with:
            return Fate.UNSURE
        if self.last_with is not None and version > self.last_with:
            return Fate.UNSURE
        return Fate.THERE


_V066, _V085, _V011 = Version(0, 6, 6), Version(0, 8, 5), Version(0, 11, 0)
_V016, _V022, _V032 = Version(0, 16, 0), Version(0, 22, 0), Version(0, 32, 0)

CHANGES: Final = {
    change.option: change
    for change in (
        Change(
            option="--max-num-partial-prefills",
            last_without=_V066,
            first_with=_V085,
            last_with=_V022,
            first_gone=_V032,
            instead="leave it out; `--long-prefill-token-threshold N` keeps one long prompt from filling a step",
        ),
        Change(
            option="--max-long-partial-prefills",
            last_without=_V066,
            first_with=_V085,
            last_with=_V022,
            first_gone=_V032,
            instead="leave it out; `--long-prefill-token-threshold N` keeps long prompts from filling a step",
        ),
        Change(
            option="--num-scheduler-steps",
            last_with=_V085,
            first_gone=_V011,
            instead="leave it out; asynchronous scheduling (`--async-scheduling`) took its place",
            why="several steps per scheduling went with the old (V0) engine",
        ),
        Change(
            option="--scheduler-delay-factor",
            last_with=_V085,
            first_gone=_V011,
            instead="leave it out; `--prefill-schedule-interval` is today's nearest, and a gateway lane bounds the "
            "wait",
        ),
        Change(
            option="--preemption-mode",
            last_with=_V085,
            first_gone=_V011,
            instead="leave it out: preempted requests are always computed again",
        ),
        Change(
            option="--swap-space",
            last_with=_V016,
            first_gone=_V022,
            instead="leave it out: nothing is swapped any more; `--kv-offloading-size` keeps evicted blocks in host "
            "memory",
        ),
        Change(
            option="--disable-log-requests",
            last_with=_V016,
            first_gone=_V022,
            instead="leave it out: requests are not logged unless `--enable-log-requests` is given",
            why="both spellings existed from 0.11 to 0.16",
        ),
        Change(
            option="--enable-log-requests",
            last_without=_V085,
            first_with=_V011,
            instead="`--disable-log-requests` is this version's switch, and logging is on without it",
        ),
        *(
            Change(option=name, last_without=_V022, first_with=_V032, instead=instead)
            for name, instead in (
                ("--max-num-queued-reqs", "bound the waiting line in the gateway (`lanes: queued:`)"),
                ("--max-num-queued-tokens", "bound the waiting line in the gateway (`lanes: queued:`)"),
                ("--max-num-active-seqs", "`--max-num-seqs`"),
                ("--enable-per-request-metrics", "the gateway's own stamps and the engine's histograms"),
                ("--sse-keep-alive-interval", "a proxy timeout above p99 of the time to first token"),
                (
                    "--custom-histogram-buckets",
                    "means from `_sum` and `_count`; the gateway's own histograms for percentiles",
                ),
            )
        ),
    )
}
"""Option -> its life; what is not here is judged by the list of 0.32.0 alone."""

V1_BY_DEFAULT: Final = _V011
"""From here on the new engine (V1) is the only one; 0.8.5 has both."""


def default_chunked_prefill(version: Version | None) -> bool | None:
    """Whether prompts are computed in pieces unless told otherwise; `None` where it depends (0.8.5: V1 yes, V0 no)."""
    if version is None or version >= V1_BY_DEFAULT:
        return True
    return None if version >= _V085 else False


def default_memory_share(version: Version | None) -> float | None:
    """`--gpu-memory-utilization` unless told otherwise: 0.92 in 0.32.0, 0.9 up to 0.19.0; `None` between."""
    if version is None or version >= _V032:
        return 0.92
    return 0.9 if version <= Version(0, 19, 0) else None


def default_batch(memory_gib: float | None, *, a100: bool, cpu: bool, cpu_ranks: int = 1) -> tuple[int, int] | None:
    """(max_num_batched_tokens, max_num_seqs) of a server under 0.32.0 on a card with this memory.

    `None` where the card is not known: the defaults go from 2,048 and 256 to 16,384 and 1,024.
    """
    if cpu:
        return 2048 * cpu_ranks, 128 * cpu_ranks
    if memory_gib is None:
        return None
    if memory_gib >= 160:
        return 16384, 1024
    if memory_gib >= 70 and not a100:
        return 8192, 1024
    return 2048, 256
