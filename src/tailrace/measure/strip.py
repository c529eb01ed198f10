"""Taking injected frames out of what is relayed.

A gateway that asks the engine for usage or progress on its own account must not pass those frames to a client that did
not ask. Everything else leaves as it came, byte for byte.
"""

from __future__ import annotations

from tailrace.measure.meter import StreamMeter


class FrameStripper:
    """Feeds a meter and gives back what the client may see.

    The bytes of an event that is still incomplete are held until its kind is known; an event in one read, which is the
    rule, is never held. A stream that cannot be framed is passed on as it is.
    """

    __slots__ = ("_held", "_meter")

    def __init__(self, meter: StreamMeter) -> None:
        """`meter.cut` names the kinds to take out."""
        self._meter = meter
        self._held = b""

    def feed(self, data: bytes, now: int) -> bytes:
        """Feed the meter; the bytes to relay now (possibly none)."""
        meter = self._meter
        if self._held:
            data_all = self._held + data
            self._held = b""
        else:
            data_all = data
        base = meter.offset - (len(data_all) - len(data))
        meter.feed(data, now)
        complete = meter.block_start - base
        if complete < len(data_all):
            self._held = data_all[complete:]
            data_all = data_all[:complete]
        cuts = meter.cuts
        if not cuts:
            return data_all
        out: list[bytes] = []
        at = 0
        for start, end in cuts:
            out.append(data_all[at : max(start - base, at)])
            at = max(end - base, at)
        out.append(data_all[at:])
        cuts.clear()
        return b"".join(out)

    def finish(self) -> bytes:
        """What is still held when the body ends; call after `meter.end`."""
        held, self._held = self._held, b""
        if self._meter.cuts:
            self._meter.cuts.clear()
            return b""
        return held
