"""What a worker process of the load generator and whoever runs it say to each other.

A worker is `python -m tailrace.probe.worker`: one event loop, its own connections, its own part run file. It needs
nothing else from whoever started it, so that a scheduler of a cluster can start the same workers on other hosts.

Each message is a 4-byte big-endian length and so many bytes of msgpack: a map whose `type` names the message. To the
worker's standard input go, in this order:

- `assignment`: what to send, to whom (the look before the run is over), and where to write the part run file;
- `start`: when. Either `at_ns` on the worker's monotonic clock, or `at_unix_ns` on its wall clock;
- `stop`, at any time: end now and keep what was measured. The end of standard input means the same: whoever ran the
  worker is gone.

From its standard output come:

- `ready`: it could begin. It carries both of the worker's clocks, read together. On one host all processes share the
  monotonic clock, and `at_ns` begins them within microseconds of each other. On several, whoever runs them reads its
  own wall clock when a `ready` arrives, which bounds how far that host's wall clock is off by the time a message takes;
  where that is little against the run, it sends each the same `at_unix_ns`, otherwise `at_ns` from the worker's own
  monotonic clock and that offset;
- `going`, about twice a second: how far it is;
- `ended`: its share, after which the part run file is whole and the worker exits with 0;
- `failed`: why it will send nothing (more), after which it exits with 1.

A worker that ends without one of the last two is lost; what its part run file holds was measured.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tailrace.probe.generator import Share
from tailrace.probe.progress import Progress
from tailrace.probe.request import Envelope
from tailrace.probe.spec import BenchSpec
from tailrace.probe.target import Target
from tailrace.store.run_file import RunHeader

VERSION: Final = 1
_LENGTH: Final = struct.Struct(">I")
MAX_MESSAGE: Final = 1 << 30
"""A trace with its rows is the longest."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True, tag="assignment"):
    """What one worker is to do; `spec.part` says which share of the plan is its own."""

    version: int = VERSION
    spec: BenchSpec
    target: Target
    header: RunHeader
    path: str
    """Of the part run file, on the worker's host."""


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """When to begin: one of the two."""

    at_ns: int | None = None
    at_unix_ns: int | None = None


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End now, keep what was measured."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The worker's clocks, read together."""

    pid: int
    monotonic_ns: int
    unix_ns: int


class Going(msgspec.Struct, frozen=True, kw_only=True, tag="going"):
    """How far it is."""

    progress: Progress


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """It is done."""

    share: Share


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """It is not, and why. `place` and `remedy` are those of bad input; both empty for a fault of the worker itself."""

    message: str
    place: str = ""
    remedy: str = ""


ToWorker = Assignment | Start | Stop
FromWorker = Ready | Going | Ended | Failed


def _encode_hook(value: Any) -> Any:
    if isinstance(value, ssl.SSLContext):
        return {"verify": value.verify_mode is not ssl.CERT_NONE}
    if isinstance(value, Envelope):
        return vars(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be sent to a worker")


def _decode_hook(kind: type, value: Any) -> Any:
    if kind is ssl.SSLContext:
        context = ssl.create_default_context()
        if not value["verify"]:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
    if kind is Envelope:
        envelope = Envelope.__new__(Envelope)
        vars(envelope).update(value)
        return envelope
    raise NotImplementedError(f"{kind.__name__} cannot come from a message")


_encoder: Final = msgspec.msgpack.Encoder(enc_hook=_encode_hook)
_to_worker: Final[msgspec.msgpack.Decoder[ToWorker]] = msgspec.msgpack.Decoder(ToWorker, dec_hook=_decode_hook)
_from_worker: Final[msgspec.msgpack.Decoder[FromWorker]] = msgspec.msgpack.Decoder(FromWorker, dec_hook=_decode_hook)


def encode(message: ToWorker | FromWorker) -> bytes:
    """A message as it goes over the pipe."""
    data = _encoder.encode(message)
    return _LENGTH.pack(len(data)) + data


class Inflow:
    """Takes bytes as they come, gives whole messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that are whole now, undecoded. ValueError for a length that is none."""
        self._data += data
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            if length > MAX_MESSAGE:
                raise ValueError(f"a message of {length} bytes is none of this protocol")
            end = _LENGTH.size + length
            if len(self._data) < end:
                return
            message = bytes(self._data[_LENGTH.size : end])
            del self._data[:end]
            yield message


def read_to_worker(data: bytes) -> ToWorker:
    """Decode one message of whoever runs the worker. `msgspec.MsgspecError` for anything else."""
    return _to_worker.decode(data)


def read_from_worker(data: bytes) -> FromWorker:
    """Decode one message of a worker. `msgspec.MsgspecError` for anything else."""
    return _from_worker.decode(data)
