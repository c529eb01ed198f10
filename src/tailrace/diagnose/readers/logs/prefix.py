"""What a collector writes before each line: its own stamp, the container's name, the pod, the stream.

2026-05-11T17:50:24.123456789Z stdout F (APIServer pid=434) INFO …     the container runtime's file
2026-05-11T17:50:24.123Z (APIServer pid=434) INFO …                    kubectl logs --timestamps
[pod/vllm-0/vllm] (APIServer pid=434) INFO …                           kubectl logs --prefix
vllm-1  | (APIServer pid=434) INFO …                                   docker compose logs
May 11 17:50:24 host vllm[123]: (APIServer pid=434) INFO …             the journal
{"log": "(APIServer pid=434) INFO …", "stream": "stderr", "time": "2026-…Z"}   docker's JSON file
{"timestamp": "2026-…Z", "level": "INFO", "message": "Engine 000: …"}          a writer's own JSON
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from tailrace.diagnose.observed import Clock
from tailrace.diagnose.readers.logs.stamps import leading_rfc3339, stamp_in
from tailrace.measure.dialect import UNREADABLE

__all__ = ["Prefixed", "unprefixed", "words_of"]

_COMPOSE: Final = re.compile(rb"([A-Za-z0-9][\w.-]{0,80}) +\| ?")
_POD: Final = re.compile(rb"\[pod/([^\]/]+)(?:/[^\]]+)?\] ?")
_CRI: Final = re.compile(rb" ?(?:stdout|stderr) ([FP]) ")
_JOURNAL: Final = re.compile(
    rb"(?:[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)?|\d{4}-\d\d-\d\dT[\d:.+-]+) (\S+) ([\w.@-]+)(?:\[\d+\])?: "
)


class Prefixed(NamedTuple):
    """A line without what a collector put before it."""

    text: bytes
    stamp: tuple[float, Clock] | None
    """The collector's stamp."""
    origin: str
    """Container, pod, or host that wrote the line."""
    partial: bool
    """The container runtime cut the line here; the next one goes on."""


class _Docker(msgspec.Struct):
    log: str
    time: str = ""


_DOCKER: Final = msgspec.json.Decoder(_Docker)


def unprefixed(line: bytes) -> Prefixed | None:
    """The line without its prefix; `None` where it has none (the usual case, decided by its first bytes)."""
    if line[:7] == b'{"log":':
        return _of_docker(line)
    stamp: tuple[float, Clock] | None = None
    origin, partial, at = "", False, 0
    found = _POD.match(line) if line[:5] == b"[pod/" else _COMPOSE.match(line) if b" | " in line[:90] else None
    if found is not None:
        origin, at = found[1].decode("utf-8", "replace"), found.end()
    if line[at + 4 : at + 5] == b"-" and line[at + 10 : at + 11] in (b"T", b" "):
        told = leading_rfc3339(line[at : at + 40])
        if told is not None and line[at + told[1] : at + told[1] + 1] in (b" ", b"\t"):
            stamp = (told[0], Clock.UTC)
            at += told[1] + 1
            cri = _CRI.match(line, at - 1)
            if cri is not None:
                partial, at = cri[1] == b"P", cri.end()
    if at == 0:
        return _of_journal(line)
    return Prefixed(line[at:], stamp, origin, partial)


def _of_docker(line: bytes) -> Prefixed | None:
    try:
        said = _DOCKER.decode(line)
    except UNREADABLE:
        return None
    text = said.log.encode("utf-8", "replace")
    stamp = stamp_in(said.time.encode()) if said.time else None
    return Prefixed(text.rstrip(b"\r\n"), stamp, "", partial=not text.endswith(b"\n"))


_WORDS: Final = ("message", "msg", "log", "line", "textPayload", "body", "MESSAGE", "event")
_STAMPS: Final = ("timestamp", "@timestamp", "time", "ts", "asctime", "date")
_ORIGINS: Final = ("pod", "pod_name", "container", "container_name", "host", "hostname", "service")
_ANY: Final = msgspec.json.Decoder()


def words_of(line: bytes) -> Prefixed | None:
    """The log line that stands in a field of a JSON object; `None` where none does."""
    try:
        said = _ANY.decode(line)
    except UNREADABLE:
        return None
    if not isinstance(said, dict):
        return None
    text = next((value for key in _WORDS if isinstance(value := said.get(key), str) and value), None)
    if text is None or text.lstrip()[:1] == "{":
        return None
    told = next((value for key in _STAMPS if isinstance(value := said.get(key), str) and value), "")
    stamp = stamp_in(told.encode()) if told else None
    inner = said.get("kubernetes")
    places = {**(inner if isinstance(inner, dict) else {}), **said}
    origins = [value for key in _ORIGINS if isinstance(value := places.get(key), str)]
    origin = origins[0] if origins else ""
    return Prefixed(text.encode("utf-8", "replace").rstrip(), stamp, origin, partial=False)


def _of_journal(line: bytes) -> Prefixed | None:
    if (line[:1].isupper() and line[3:4] == b" " and line[9:10] == b":") or line[10:11] == b"T":
        found = _JOURNAL.match(line)
        if found is not None:
            return Prefixed(line[found.end() :], stamp_in(line[: found.start(1)]), found[2].decode(), partial=False)
    return None
