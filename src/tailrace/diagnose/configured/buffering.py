"""GW_PROXY_BUFFERING from a table of two paths and from configuration: a hop cannot speed tokens up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.diagnose.observed import Arm, Observed, Quoted, Setting
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["Buffered", "buffered_locations", "buffering_on_paths"]

LATER: Final = 1.5
"""TTFT behind the hop against before it: at least so many times …"""
LATER_MS: Final = 20.0
SMOOTHER: Final = 0.8
"""… while the gaps shrink to this share: only chunks that were held come so close together."""
ADVICE: Final = (
    "Switch response buffering off and speak HTTP/1.1 to the upstream, both: `proxy_buffering off;` and "
    "`proxy_http_version 1.1;` in the location that streams (or answer with `X-Accel-Buffering: no`); no compression "
    "of text/event-stream, no buffer filter in a mesh."
)
PRICE: Final = "More and smaller writes: some CPU in the proxy, and a slow reader then holds its upstream connection."
VERIFY: Final = (
    "tailrace bench http://localhost:8080 --concurrency 1 --requests 20 --out via.run && "
    "tailrace bench http://localhost:8000 --concurrency 1 --requests 20 --out direct.run && "
    "tailrace compare direct.run via.run"
)
_HOP: Final = re.compile(
    r"\bvia\b|through|proxy|proxied|gateway|router|load.?balancer|\blb\b|\balb\b|ingress|\bhop\b|sidecar|\bmesh\b|envoy|"
    r"nginx|openresty|haproxy|traefik|caddy|litellm|kong|istio|ap[ix]+six|higress|front.?end|\bcdn\b|cloudflare|behind|"
    r"\bafter\b.{0,20}\bhop\b|one (?:more )?hop|tunnel",
    re.IGNORECASE,
)
_DIRECT: Final = re.compile(
    r"\bdirect|\bbare\b|without|\bno[ -](?:proxy|hop|gateway|lb)|straight|localhost|\bengine\b|upstream|\bin.?pod\b|"
    r"port.?forward|bypass",
    re.IGNORECASE,
)
_CLIENT: Final = re.compile(r"client|via|proxy|outside|user|downstream|browser", re.IGNORECASE)
_UPSTREAM: Final = re.compile(r"upstream|engine|direct|server|inside|backend", re.IGNORECASE)
_DEFAULTS: Final = {
    "proxy_buffering": " (default)",
    "proxy_http_version": " (default before nginx 1.29.7)",
}
_USUAL: Final = ("p50", "mean", "")
_TAIL: Final = ("p99", "p95", "p90")


class _Paths(NamedTuple):
    """The same quantities before the hop and behind it."""

    before: tuple[Quoted, Quoted]
    """TTFT and gap."""
    behind: tuple[Quoted, Quoted]
    names: tuple[str, str]
    told: bool
    """A word says that there is a hop."""
    chunks: float | None = None
    """Of the answer that came straight, where they were counted."""


class Buffered(NamedTuple):
    """A location that passes streams on and holds them."""

    scope: str
    buffering: Setting | None
    """Where it is on; `None` where it is off."""
    version: Setting | None
    """Where HTTP/1.0 goes to the upstream."""
    unset: list[str]

    def words(self) -> str:
        """What is wrong with it."""
        parts = []
        if self.buffering is not None:
            default = " (nginx's default: nothing sets it)" if "proxy_buffering" in self.unset else ""
            parts.append(f"proxy_buffering is on{default}")
        if self.version is not None:
            default = " (nginx's default: nothing sets it)" if "proxy_http_version" in self.unset else ""
            parts.append(f"proxy_http_version is 1.0{default}")
        return " and ".join(parts)

    def evidence(self) -> list[Evidence]:
        """Both, with their lines."""
        known = [item for item in (self.buffering, self.version) if item is not None]
        return [
            Evidence(
                text=f"{self.scope}: {item.name.partition('.')[2]} {item.value}"
                + (_DEFAULTS.get(item.name.partition(".")[2], "") if item.name.partition(".")[2] in self.unset else ""),
                source=str(item.place),
                name=item.name,
            )
            for item in known
        ]


def buffered_locations(observed: Observed) -> tuple[list[Buffered], int]:
    """(locations of proxies that hold streams, all locations that are known).

    One that does not ask for HTTP/1.1 counts as well: without it the answer has no chunks to pass on.
    """
    scopes: dict[str, dict[str, Setting]] = {}
    for item in observed.settings:
        owner, _, name = item.name.partition(".")
        if name in {"proxy_buffering", "proxy_http_version", "proxy_pass", "unset"}:
            scopes.setdefault(f"{owner}\0{item.scope}", {})[name] = item
    held, total = [], 0
    for key, found in scopes.items():
        if not found.keys() & {"proxy_buffering", "proxy_http_version"}:
            continue
        total += 1
        buffering, version = found.get("proxy_buffering"), found.get("proxy_http_version")
        unset = found["unset"].value if "unset" in found else []
        one = Buffered(
            key.partition("\0")[2] or key.partition("\0")[0],
            buffering if buffering is not None and str(buffering.value).lower() != "off" else None,
            version if version is not None and str(version.value) == "1.0" else None,
            [str(name) for name in unset] if isinstance(unset, list) else [],
        )
        if one.buffering is not None or one.version is not None:
            held.append(one)
    return held, total


def buffering_on_paths(cause: Cause, observed: Observed) -> Finding | None:
    """Two paths of which the slower to begin has the smaller gaps; with the configuration, where it is known."""
    held, known = buffered_locations(observed)
    paths = _paths(observed)
    if paths is None:
        return _alone(cause, held) if held else None
    if not paths.told and not held:
        return None
    return _found(cause, paths, held, known)


def _found(cause: Cause, paths: _Paths, held: list[Buffered], known: int) -> Finding:
    (first, gap), (later, smaller) = paths.before, paths.behind
    moved = later.value - first.value
    chunks = moved / gap.value if gap.value else 0.0
    evidence = [
        Evidence(
            text=f"{name}: TTFT {ttft.stat} {_ms(ttft.value)}, ITL {itl.stat} {_ms(itl.value)}".replace("  ", " "),
            source=str(ttft.place) or "form",
            name=ttft.key,
            value=ttft.value,
            unit="ms",
        )
        for name, (ttft, itl) in zip(paths.names, (paths.before, paths.behind), strict=True)
    ]
    evidence.append(
        Evidence(
            text=f"{_ms(moved)} more before the first token, about {chunks:.0f} chunks at {_ms(gap.value)}",
            source=str(later.place) or "form",
            name="held",
            value=round(moved, 3),
            unit="ms",
        )
    )
    missing, rivals, checked = [], [], []
    config = whole = ""
    if paths.chunks is not None:
        ends = first.value + (paths.chunks - 1.0) * gap.value
        if later.value > ends:
            whole = f"; {_plain(first.value)} + {paths.chunks - 1.0:g} x {_plain(gap.value)} = {_plain(ends)} < "
            whole += f"{_plain(later.value)} ms: the whole answer is held"
            words = f"straight, {paths.chunks:g} chunks are through after {_ms(ends)}: the hop's first one comes later"
            evidence.append(Evidence(words, str(later.place) or "form", "whole_ms", round(ends, 3), "ms"))
    if held:
        worst = max(held, key=lambda one: (one.buffering is not None, one.version is not None))
        config = f" In {worst.scope}, {worst.words()}."
        evidence += worst.evidence()
        checked.append(f"{worst.scope} holds streams by its configuration")
    elif known:
        # Both are right here: another hop holds the stream, or the engine sends in clumps on that path.
        checked.append(f"{known} location{'s' if known != 1 else ''} of the configuration given hold nothing")
        missing.append("the configuration of every other hop between the client and the engine")
        rivals.append("GW_CHUNK_COALESCING")
    usual = all(item.stat not in _TAIL for item in (first, later))
    checked.append("the usual request is shifted, not the tail alone" if usual else "only the tail is known")
    if not usual:
        missing.append("the median of both paths: buffering shifts every stream, not the tail alone")
    return cause.finding(
        statement=f"Behind the hop TTFT is {_ms(later.value)} instead of {_ms(first.value)}, yet ITL is "
        f"{_ms(smaller.value)} instead of {_ms(gap.value)}: a hop cannot speed tokens up, so it holds chunks back and "
        f"lets them go in clumps.{config}",
        evidence=evidence,
        explains_ms=moved,
        relation=f"ITL {_ms(smaller.value)} < {_ms(gap.value)} while TTFT {_ms(later.value)} > {_ms(first.value)}; "
        f"({_plain(later.value)} - {_plain(first.value)}) / {_plain(gap.value)} = {chunks:.0f} chunks held{whole}",
        n=2,
        advice=ADVICE,
        price=PRICE,
        verify=VERIFY,
        missing=missing,
        rivals=rivals,
        disproof_checked=checked,
        action=Action.FIX,
    )


def _alone(cause: Cause, held: list[Buffered]) -> Finding:
    worst = max(held, key=lambda one: (one.buffering is not None, one.version is not None))
    return cause.finding(
        statement=f"By its configuration {worst.scope} holds streams: {worst.words()}.",
        evidence=worst.evidence(),
        explains_ms=None,
        relation=f"{len(held)} location{'s' if len(held) != 1 else ''} without `proxy_buffering off` and "
        "`proxy_http_version 1.1`, both",
        n=len(held),
        advice=ADVICE,
        price=PRICE,
        verify=VERIFY,
        missing=["TTFT and ITL straight to the engine and through the proxy: a setting alone slows nobody down"],
        level=Level.SUSPECTED,
        action=Action.FIX,
    )


def _paths(observed: Observed) -> _Paths | None:
    found = [one for arm in observed.arms if (one := _within(arm)) is not None]
    arms = [(arm, numbers) for arm in observed.arms for numbers in _numbers(arm)]
    notes = " ".join([*observed.notes, *(str(item.value) for item in observed.settings if item.name == "changed")])
    for before, (ttft, gap) in arms:
        for behind, (later, smaller) in arms:
            if before is behind or ttft.stat != later.stat or not _same_load(before, behind):
                continue
            if not _shifted(ttft, gap, later, smaller):
                continue
            words, other = _words(behind), _words(before)
            told = bool(
                (_HOP.search(words) and not _DIRECT.match(words)) or _DIRECT.search(other) or _HOP.search(notes)
            )
            # A hop in front of the faster one as well, and none in front of the slower: that is no hop's doing.
            if _HOP.search(other) and not _DIRECT.search(other) and not _HOP.search(words):
                continue
            found.append(_Paths((ttft, gap), (later, smaller), (before.name, behind.name), told, _chunks(before)))
    # The usual request says more than the tail.
    return min(found, key=lambda one: (not one.told, one.before[0].stat in _TAIL), default=None)


def _within(arm: Arm) -> _Paths | None:
    """One row with the client's numbers and the upstream's."""
    for stat in (*_USUAL, *_TAIL):
        sides: dict[bool, dict[str, Quoted]] = {True: {}, False: {}}
        for value in arm.values.values():
            words = f"{value.qualifier} {value.label}"
            if value.relative or value.stat != stat or value.quantity not in {"ttft", "itl", "tpot", "chunk_gap"}:
                continue
            client, upstream = _CLIENT.search(words), _UPSTREAM.search(words)
            if bool(client) != bool(upstream):
                sides[bool(client)].setdefault("ttft" if value.quantity == "ttft" else "itl", value)
        if all(len(side) == 2 for side in sides.values()):
            before, behind = sides[False], sides[True]
            if _shifted(before["ttft"], before["itl"], behind["ttft"], behind["itl"]):
                return _Paths(
                    (before["ttft"], before["itl"]),
                    (behind["ttft"], behind["itl"]),
                    (f"{arm.name}, upstream", f"{arm.name}, client"),
                    told=True,
                )
    return None


def _numbers(arm: Arm) -> list[tuple[Quoted, Quoted]]:
    """(TTFT, gap) of an arm for each statistic that it has of both."""
    out = []
    for stat in (*_USUAL, *_TAIL):
        ttft = arm.quoted("ttft", stat)
        gap = arm.quoted("itl", stat) or arm.quoted("chunk_gap", stat) or arm.quoted("tpot", stat)
        if gap is None and not stat:
            # One request: a TTFT is a number of its own, its gaps have a mean.
            gap = next((g for name in ("itl", "chunk_gap", "tpot") if (g := arm.quoted(name, "mean", "p50"))), None)
        if ttft is not None and gap is not None and not ttft.relative and not gap.relative:
            out.append((ttft, gap))
    return out


def _shifted(ttft: Quoted, gap: Quoted, later: Quoted, smaller: Quoted) -> bool:
    return (
        later.value >= LATER * ttft.value
        and later.value - ttft.value >= LATER_MS
        and 0 <= smaller.value <= SMOOTHER * gap.value
    )


def _chunks(arm: Arm) -> float | None:
    """How many chunks (else tokens) its answer had."""
    counted = [v for v in arm.values.values() if re.fullmatch(r"(?:n )?(?:chunks|events|deltas)", v.label.lower())]
    counted += [v for name in ("chunks", "output_tokens") if (v := arm.quoted(name, "", "mean")) is not None]
    return next((v.value for v in counted if not v.relative and v.value > 1), None)


def _same_load(one: Arm, other: Arm) -> bool:
    loads = [arm.keys.get("concurrency", arm.get("concurrency")) for arm in (one, other)]
    return loads[0] is None or loads[1] is None or loads[0] == loads[1]


def _words(arm: Arm) -> str:
    return " ".join([arm.label, arm.name, *(str(value) for value in arm.keys.values() if isinstance(value, str))])


def _plain(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"


def _ms(value: float) -> str:
    return f"{_plain(value)} ms"
