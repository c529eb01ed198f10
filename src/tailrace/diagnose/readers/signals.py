"""What a gateway's `GET /signals` answers, live or saved."""

from __future__ import annotations

import msgspec

from tailrace.diagnose.hardware import Hardware
from tailrace.measure.dialect import UNREADABLE
from tailrace.model.errors import InputError
from tailrace.model.gpu_state import GpuState
from tailrace.model.host_state import HostState

__all__ = ["MARK", "read_signals"]

MARK = b'"tailrace_signals"'
"""The first key of such an answer."""


class _Signals(msgspec.Struct):
    tailrace_signals: int
    host: list[HostState] = []
    gpus: list[GpuState] = []
    engine_pids: list[int] = []
    absent: dict[str, str] = {}


_decode = msgspec.json.Decoder(_Signals)


def read_signals(body: bytes, name: str) -> Hardware:
    """The series in it. InputError where it is no such answer."""
    try:
        found = _decode.decode(body)
    except UNREADABLE as error:
        raise InputError(f"these are no signals of a gateway: {error}", place=name) from None
    return Hardware(
        host=found.host, gpus=found.gpus, engine_pids=found.engine_pids, absent=found.absent, sources=[name]
    )
