"""Chunks that a hop lets through in bursts: a buffer fills, is sent, and fills again."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.configured.buffering import PRICE, VERIFY
from tailrace.diagnose.observed import Observed, Rows
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["ADVICE", "PRICE", "VERIFY", "Path", "paths_in", "proxy_bursts"]

BUFFERS: Final = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 1048576)
"""Sizes that proxies and libraries have (nginx' buffers are a page or two, 4 or 8 KiB, times their number)."""
TOGETHER_MS: Final = 20.0
"""Chunks that come so near to each other were sent together, if the sender's own gaps are longer."""
INSTANT_MS: Final = 1.0
"""No engine makes a chunk of one stream in less: a stream that is faster as a whole was sent at once."""
LEAST_CHUNKS: Final = 12
LEAST_IN_BURST: Final = 3.0
EVEN: Final = 0.25
"""Spread of the bursts' periods (half the distance of the quartiles by the median) below which they are even."""
NEAR: Final = 0.12


SOON_MS: Final = 1000.0
"""Streams whose first chunks are stamped within so much (and twice the earliest) are stamped from their own starts."""


class Path(NamedTuple):
    """What came through one path: the streams of one arm."""

    name: str
    chunks: int
    streams: int
    chunk_bytes: float
    """Median; NaN where unknown."""
    first_ms: float
    """Median time of the client's first chunk from its upstream's, else from the table's origin."""
    gap_ms: float
    """Median gap at the client."""
    sent_in_bursts: bool
    """The sender itself made clumps."""
    sent_gap_ms: float
    """Median gap before the hop; NaN where nobody stamped it."""
    burst_chunks: float
    """Median chunks of a burst that is not the last one; 1 where chunks come singly."""
    burst_period_ms: float
    even: bool
    at_once: bool
    """Every chunk of a stream came together, after the last one had been sent."""
    span_ms: float
    """Median time over which a stream's chunks were sent (or read, where nobody stamped that)."""
    line: str
    """Where the first burst stands."""
    stamps: tuple[float, float, float] | None = None
    """First and last chunk before the hop, and the client's first, as stamped (median over streams); `None` where the
    streams have no common origin, or one side was not stamped."""

    @property
    def bursty(self) -> bool:
        """Whether chunks come in clumps that the sender did not make."""
        return self.burst_chunks >= LEAST_IN_BURST or self.at_once


def paths_in(observed: Observed) -> list[Path]:
    """One a table and arm; those with too few chunks are left out."""
    out = []
    for rows in observed.table("chunks"):
        if not rows.has("t_client_ms"):
            continue
        arms = rows.texts("arm")
        streams: dict[str, list[NDArray[np.int64]]] = {}
        for members in rows.members("req").values():
            # One name may stand for a stream on each path.
            of_arm: dict[str, list[int]] = {}
            for row in members:
                of_arm.setdefault(arms[row], []).append(int(row))
            for arm, mine in of_arm.items():
                streams.setdefault(arm, []).append(np.array(mine, dtype=np.int64))
        for arm, every in streams.items():
            found = _path(rows, arm, every)
            if found is not None:
                out.append(found)
    return out


def _of_one_origin(stamped: list[tuple[float, float, float]]) -> tuple[float, float, float] | None:
    """The median stream, where all were stamped from their own request's start: they then begin at about one time."""
    if not stamped:
        return None
    begins = [first for first, _, _ in stamped]
    if min(begins) < 0 or max(begins) > 2 * min(begins) + SOON_MS:
        return None
    first, last, read = (float(np.median([one[part] for one in stamped])) for part in range(3))
    return first, last, read


def _path(rows: Rows, arm: str, streams: list[NDArray[np.int64]]) -> Path | None:
    client, sent, size = (rows.numbers(name) for name in ("t_client_ms", "t_upstream_ms", "bytes"))
    lengths: list[float] = []
    periods: list[float] = []
    gaps: list[float] = []
    sent_gaps: list[float] = []
    spans: list[float] = []
    firsts: list[float] = []
    at_once: list[bool] = []
    stamped: list[tuple[float, float, float]] = []
    line = ""
    for every in streams:
        mine = every[np.isfinite(client[every])]
        if mine.size < LEAST_CHUNKS:
            continue
        mine = mine[np.argsort(client[mine], kind="stable")]
        read, went = client[mine], np.sort(sent[mine])
        gap = np.diff(read)
        gaps += list(gap)
        known = bool(np.isfinite(went).all())
        sent_gaps += list(np.diff(went)) if known else []
        usual = float(np.median(np.diff(went))) if known else float("nan")
        # Whose own gaps nobody stamped was as fast as the stream was on the whole.
        pace = usual if usual > 0 else float(read[-1] - read[0]) / (mine.size - 1)
        at_one_instant = not usual > 0 and pace <= INSTANT_MS
        near = TOGETHER_MS if at_one_instant or pace <= 0 else min(TOGETHER_MS, 0.2 * pace)
        starts = np.concatenate([[0], np.flatnonzero(gap > near) + 1, [mine.size]])
        counts = np.diff(starts)
        whole = counts[:-1] if counts.size > 1 else counts
        lengths += list(whole.astype(float))
        begins = read[starts[:-1]]
        periods += list(np.diff(begins))
        spans.append(float(went[-1] - went[0]) if known else float(read[-1] - read[0]))
        firsts.append(float(read[0] - went[0]) if known else float(read[0]))
        if known:
            stamped.append((float(went[0]), float(went[-1]), float(read[0])))
        at_once.append(counts.size == 1 and (at_one_instant if not known else bool(read[0] >= went[-1])))
        if not line and counts.max() >= LEAST_IN_BURST:
            place = int(starts[int(np.argmax(counts))])
            line = str(rows.line_of(int(mine[place])))
    if not spans:
        return None
    period = float(np.median(periods)) if periods else float("nan")
    spread = float(np.quantile(periods, 0.75) - np.quantile(periods, 0.25)) / 2 if len(periods) > 1 else 0.0
    whole = np.concatenate(streams)
    weighed = size[whole][np.isfinite(size[whole])]
    return Path(
        name=arm,
        chunks=int(np.isfinite(client[whole]).sum()),
        streams=len(spans),
        chunk_bytes=float(np.median(weighed)) if weighed.size else float("nan"),
        first_ms=float(np.median(firsts)),
        gap_ms=float(np.median(gaps)),
        sent_in_bursts=bool(sent_gaps) and float(np.median(sent_gaps)) < 0.25 * float(np.mean(sent_gaps)),
        sent_gap_ms=float(np.median(sent_gaps)) if sent_gaps else float("nan"),
        burst_chunks=float(np.median(lengths)),
        burst_period_ms=period,
        even=bool(periods) and spread <= EVEN * max(period, 1e-9),
        at_once=all(at_once),
        stamps=_of_one_origin(stamped),
        span_ms=float(np.median(spans)),
        line=line or str(rows.place),
    )


def proxy_bursts(cause: Cause, observed: Observed) -> Finding | None:
    """Chunks come singly before the hop (its own stamps, or a direct path) and in even bursts behind it."""
    paths = paths_in(observed)
    worst = max((path for path in paths if path.bursty), key=lambda path: path.burst_chunks, default=None)
    if worst is None:
        return None
    direct = next((path for path in paths if not path.bursty), None)
    # Before the hop the chunks must have come apart: bursts that the engine makes are none of the hop's.
    if worst.sent_in_bursts and not worst.at_once:
        return None
    chunk_ms = worst.sent_gap_ms
    how = "as stamped before the hop"
    if not np.isfinite(chunk_ms) and direct is not None:
        chunk_ms, how = direct.gap_ms, f"on the path {direct.name or 'without bursts'}"
    missing = []
    if not np.isfinite(chunk_ms):
        missing.append("when each chunk left the engine (t_upstream_ms), or the same stream read without the hop")
        chunk_ms = worst.burst_period_ms / worst.burst_chunks
        how = "burst period / chunks"
    if worst.at_once:
        return _all_at_once(cause, worst, direct, chunk_ms, missing)
    if not worst.even:
        missing.append("more bursts: those here are not even")
    return _in_bursts(cause, worst, direct, chunk_ms, how, missing)


def _in_bursts(
    cause: Cause, worst: Path, direct: Path | None, chunk_ms: float, how: str, missing: list[str]
) -> Finding | None:
    seen_s = worst.burst_period_ms / 1e3
    chunks = f"{worst.burst_chunks:.0f}"
    name = worst.name or "the path"
    evidence = [
        Evidence(
            text=f"{name}: bursts of {chunks} chunks (median of {worst.streams} stream(s), {worst.chunks} chunks), one "
            f"every {seen_s:.3g} s",
            source=worst.line,
            name="burst_period",
            value=round(worst.burst_period_ms, 1),
            unit="ms",
        ),
        Evidence(
            text=f"a chunk every {chunk_ms:.4g} ms, {how}",
            source=worst.line,
            name="chunk_period",
            value=chunk_ms,
            unit="ms",
        ),
    ]
    if np.isfinite(worst.sent_gap_ms):
        evidence.append(
            Evidence(
                text=f"median gap behind the hop {worst.gap_ms:.3g} ms, before it {worst.sent_gap_ms:.4g} ms: no hop "
                "can "
                "speed tokens up, it can only have held them",
                source=worst.line,
                name="itl_client",
                value=worst.gap_ms,
                unit="ms",
            )
        )
    relation, buffer, head = "", None, f"one burst of {chunks} chunks"
    if np.isfinite(worst.chunk_bytes):
        held = worst.burst_chunks * worst.chunk_bytes
        buffer = min(BUFFERS, key=lambda size: abs(np.log(size / held)))
        if abs(buffer - held) > max(NEAR * buffer, 1.5 * worst.chunk_bytes):
            missing.append("the size of the hop's buffer: a burst's bytes are near to no usual one")
            buffer = None
        size = f"{worst.chunk_bytes:.0f}"
        evidence.append(
            Evidence(
                text=f"chunks of {size} bytes, so a burst holds {held:.0f} bytes",
                source=worst.line,
                name="burst_bytes",
                value=held,
                unit="bytes",
            )
        )
        if buffer is not None:
            expected = buffer / worst.chunk_bytes
            predicted = expected * chunk_ms / 1e3
            relation = (
                f"{buffer}/{size} = {expected:.1f} chunks x {chunk_ms / 1e3:.4g} s = {predicted:.2f} s; seen {chunks} "
                f"chunks every {seen_s:.3g} s"
            )
            head = f"a buffer of {buffer} bytes ({_kib(buffer)}) holds {expected:.1f} chunks of {size} bytes"
            if abs(predicted - seen_s) > NEAR * seen_s:
                missing.append("an explanation of the period: a buffer of that size would be sent at another one")
    else:
        missing.append("the bytes of each chunk, to name the buffer")
        relation = f"{chunks} chunks x {chunk_ms / 1e3:.4g} s = {worst.burst_chunks * chunk_ms / 1e3:.3g} s"
        relation += f"; seen {seen_s:.3g} s"
    if direct is not None:
        evidence.append(
            Evidence(
                text=f"{direct.name or 'the other path'}: chunks come singly, one every {direct.gap_ms:.4g} ms",
                source=direct.line,
                name="itl_direct",
                value=direct.gap_ms,
                unit="ms",
            )
        )
    return cause.finding(
        statement=f"A hop on {name} buffers the stream: chunks arrive in bursts of {chunks} every {seen_s:.3g} s; "
        f"{head}. "
        "The engine sends them singly and is innocent.",
        evidence=evidence,
        explains_ms=max(worst.burst_period_ms - chunk_ms, 0.0),
        relation=relation,
        n=worst.chunks,
        advice=ADVICE,
        price=PRICE,
        verify=VERIFY,
        missing=missing,
        disproof_checked=[
            "every stream of that path comes in bursts, not the slow ones alone"
            if worst.streams > 1
            else "one stream was seen: whether all of that path come so is not known",
            "before the hop the chunks are apart" if np.isfinite(worst.sent_gap_ms) else how,
        ],
        action=Action.FIX,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )


def _all_at_once(cause: Cause, worst: Path, direct: Path | None, chunk_ms: float, missing: list[str]) -> Finding | None:
    if missing and direct is None:
        return None  # whether the engine sent it in one piece is not known
    name = worst.name or "the path"
    whole = worst.span_ms if np.isfinite(worst.sent_gap_ms) else (worst.chunks / worst.streams - 1) * chunk_ms
    first = f"{worst.first_ms:.0f}"
    return cause.finding(
        statement=f"A hop on {name} holds the whole answer: all chunks of a stream arrive in one burst, after the "
        "last one "
        f"was sent; the first one comes after {first} ms.",
        evidence=[
            Evidence(
                text=f"{name}: one burst a stream, the first chunk after {first} ms; the chunks were sent over "
                f"{whole:.0f} ms",
                source=worst.line,
                name="first_chunk",
                value=worst.first_ms,
                unit="ms",
            ),
            *_stamped(worst),
            *(
                [
                    Evidence(
                        text=f"{direct.name or 'the other path'}: first chunk after {direct.first_ms:.0f} ms, then "
                        "one every "
                        f"{direct.gap_ms:.4g} ms",
                        source=direct.line,
                        name="itl_direct",
                        value=direct.gap_ms,
                        unit="ms",
                    )
                ]
                if direct is not None
                else []
            ),
        ],
        explains_ms=whole,
        relation=f"first chunk {first} ms >= {whole:.0f} ms, the time over which {worst.chunks / worst.streams:.0f} "
        "chunks "
        f"are sent at {chunk_ms:.4g} ms each",
        n=worst.chunks,
        advice=ADVICE,
        price=PRICE,
        verify=VERIFY,
        missing=missing,
        action=Action.FIX,
    )


def _stamped(worst: Path) -> list[Evidence]:
    if worst.stamps is None:
        return []
    first, last, read = worst.stamps
    text = (
        f"as stamped: the upstream sends from {first:.0f} to {last:.0f} ms, the client gets all of its "
        f"{worst.chunks / worst.streams:.0f} chunks at {read:.0f} ms"
    )
    return [Evidence(text, worst.line, "first_byte_client", round(read, 3), "ms")]


def _kib(size: int) -> str:
    return f"{size // 1024} KiB" if size < 1 << 20 else f"{size >> 20} MiB"


ADVICE: Final = (
    "Switch response buffering off for streaming paths and speak HTTP/1.1 to the upstream, both: nginx "
    "`proxy_buffering "
    "off; proxy_http_version 1.1;` (or answer with `X-Accel-Buffering: no`), Envoy without a buffer filter, and no "
    "compression that waits for a full block (`gzip off` for text/event-stream); flush each event in a gateway of "
    "one's own."
)
