"""The same bytes to Tailrace and to nginx, in front of the same engine: what differs is listed here, with the reason.

Compared are: the class of each answer's status, the bodies of successful answers, what the engine saw, and whether the
connection serves another request afterwards.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.wire.client import RawClient, request
from tests.wire.peer import nginx
from tests.wire.scripted import Incoming, ScriptedEngine
from tests.wire.stand import run, stand
from tests.wire.test_engine_framing import DOUBTFUL, SOUND
from tests.wire.test_smuggling import ACCEPTED, BODY, CHUNKED, CHUNKS, HOST, LENGTH, LINE, REFUSED

pytestmark = pytest.mark.needs("nginx")

GOOD = LINE + HOST + LENGTH + b"\r\n" + BODY
PROBE = request(path="/v1/models/probe", method="GET")
WAIT_S = 0.5


@dataclass(frozen=True)
class Transcript:
    data: bytes
    answers: int = 1


@dataclass(frozen=True)
class Seen:
    """What one proxy made of a transcript."""

    statuses: tuple[str, ...]
    """`2xx` and so on; `none` where no HTTP answer came."""
    bodies: tuple[bytes, ...]
    engine: tuple[tuple[str, str, bytes], ...]
    usable: bool


REQUESTS = {
    **{name: Transcript(data) for name, (data, _) in REFUSED.items()},
    **{name: Transcript(data) for name, data in ACCEPTED.items()},
    "plain": Transcript(GOOD),
    "three in a pipeline": Transcript(GOOD * 3, 3),
    "chunked, then plain": Transcript(LINE + HOST + CHUNKED + b"\r\n" + CHUNKS + GOOD, 2),
    "a bad one in a pipeline": Transcript(GOOD + LINE + b"Host : a\r\n\r\n" + GOOD, 2),
    "close, and more behind it": Transcript(LINE + HOST + LENGTH + b"Connection: close\r\n\r\n" + BODY + GOOD),
    "trailers": Transcript(LINE + HOST + CHUNKED + b"\r\nd\r\n" + BODY + b"\r\n0\r\nX-T: 1\r\n\r\n"),
    "extensions": Transcript(LINE + HOST + CHUNKED + b'\r\nd;a=b;c="d"\r\n' + BODY + b"\r\n0;x\r\n\r\n"),
    "body of a GET": Transcript(b"GET /v1/models HTTP/1.1\r\n" + HOST + LENGTH + b"\r\n" + BODY),
    "an unknown method": Transcript(b"BREW /v1/models HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a body that is too large": Transcript(LINE + HOST + b"Content-Length: 99999999999\r\n\r\n"),
    "expectation met": Transcript(LINE + HOST + LENGTH + b"Expect: 100-continue\r\n\r\n" + BODY),
    "header of 20 kB": Transcript(LINE + HOST + b"X-A: " + b"x" * 20_000 + b"\r\n" + LENGTH + b"\r\n" + BODY),
    "header of 100 kB": Transcript(LINE + HOST + b"X-A: " + b"x" * 100_000 + b"\r\n" + LENGTH + b"\r\n" + BODY),
    "target of 20 kB": Transcript(b"GET /v1/models?" + b"x" * 20_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n"),
}
ANSWERS = {**SOUND, **{name: data for name, data in DOUBTFUL.items() if name != "interim answers without end"}}

_STATUS = "both refuse: 400 here, 501 there, for a coding that is malformed rather than unknown"
_LF = "a bare LF is a line end there: two readers in a row may disagree on where a line ends"
_CHUNK = "the chunk grammar of RFC 9112 §7.1 has no such byte"
_SPACE = "RFC 9110 §5.5 allows spaces and tabs around a value; nginx's parser takes spaces alone"
DIFFERENCES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        DOUBTFUL, ("tells", "a 502 says what is wrong; nginx repairs the answer or ends it without a word")
    ),
    "an empty line before": ("reads", "a stray CRLF before a status line ends nothing (RFC 9112 §2.2)"),
    "coding after chunked": ("otherwise", _STATUS),
    "chunked twice in a line": ("otherwise", _STATUS),
    "empty member after": ("otherwise", _STATUS),
    "vertical tab": ("otherwise", _STATUS),
    "identity beside a length": ("otherwise", _STATUS),
    "empty coding beside a length": ("otherwise", _STATUS),
    "HTTP/0.9 by name": ("otherwise", "505 names the reason; nginx says 400"),
    "underscored coding": ("stricter", "nginx drops the header; an engine behind CGI-like variables would obey it"),
    "underscored length": ("stricter", "nginx drops the header; an engine behind CGI-like variables would obey it"),
    "LF behind a size": ("stricter", _LF),
    "LF behind a chunk": ("stricter", _LF),
    "LF behind the last chunk": ("stricter", _LF),
    "LF in a trailer": ("stricter", _LF),
    "LF behind the request line": ("stricter", _LF),
    "LF behind a header": ("stricter", _LF),
    "LF for the empty line": ("stricter", _LF),
    "LF in an extension": ("stricter", _LF),
    "CR in an extension": ("stricter", _CHUNK),
    "NUL in an extension": ("stricter", _CHUNK),
    "space behind a size": ("stricter", _CHUNK),
    "length in a trailer": ("stricter", "RFC 9110 §6.5.1 forbids framing fields in trailers"),
    "coding in a trailer": ("stricter", "RFC 9110 §6.5.1 forbids framing fields in trailers"),
    "no colon": ("stricter", "a line that is no header is dropped there"),
    "name that is not ASCII": ("stricter", "a name that is no token is dropped there"),
    "control character in a value": ("stricter", "RFC 9110 §5.5: a recipient may refuse, and logs are safer for it"),
    "Host with a user": ("stricter", "RFC 9110 §7.2: the host has no user information"),
    "target that is not ASCII": ("stricter", "RFC 9112 §3.2: such a target is to be refused, not repaired"),
    "HTTP/0.9": ("stricter", "a version without headers cannot say whose answer it is"),
    "HTTP/1.2": ("stricter", "no such version exists"),
    "an unknown method": ("stricter", "no API of an engine has it"),
    "length with spaces around": ("looser", _SPACE),
    "coding with spaces around": ("looser", _SPACE),
    "header of 20 kB": ("looser", "64 KiB of head are allowed here: tokens and trace baggage are long"),
    "100 that nobody asked for": ("keeps", "interim answers end, and the connection goes on"),
    "102 again and again": ("keeps", "interim answers end, and the connection goes on"),
    "103 with headers": ("keeps", "interim answers end, and the connection goes on"),
}
"""Name -> how Tailrace differs, and why it may."""


def judge(name: str, ours: Seen, theirs: Seen) -> None:
    if ours == theirs:
        return
    assert name in DIFFERENCES, f"{name}: not listed\n  ours  {ours}\n  nginx {theirs}"
    kind, why = DIFFERENCES[name]
    assert why
    refused = all(status in ("4xx", "5xx") for status in ours.statuses) and not ours.usable
    if kind == "otherwise":
        assert refused, ours
        assert (ours.engine, theirs.engine) == ((), ()), theirs
    elif kind == "stricter":
        assert refused, ours
        assert ours.engine == ()
    elif kind == "looser":
        assert ours.statuses == ("2xx",)
        assert ours.usable
        assert theirs.engine == ()
    elif kind == "tells":
        assert (ours.statuses, ours.engine) == (("5xx",), theirs.engine)
        assert ours.usable
    elif kind == "reads":
        assert (ours.statuses, ours.engine) == (("2xx",), theirs.engine)
        assert ours.usable
    else:
        assert kind == "keeps"
        assert (ours.statuses, ours.bodies, ours.engine) == (theirs.statuses, theirs.bodies, theirs.engine)
        assert ours.usable


async def _engine(incoming: Incoming) -> None:
    key = incoming.target.removeprefix("/answers/")
    if key != incoming.target:
        await incoming.send(list(ANSWERS.values())[int(key)])
        return
    await incoming.reply({"target": incoming.target, "body": incoming.body.decode("latin-1")})


async def _play(url: str, engine: ScriptedEngine, transcript: Transcript) -> Seen:
    engine.requests.clear()
    client = await RawClient.connect(url)
    statuses, bodies = [], []
    try:
        client.writer.write(transcript.data)
        for _ in range(transcript.answers):
            try:
                async with asyncio.timeout(WAIT_S):
                    reply = await client.reply()
                    while reply.status < 200:
                        reply = await client.reply()
            except (asyncio.IncompleteReadError, ConnectionError, TimeoutError, ValueError, IndexError):
                statuses.append("none")
                break
            statuses.append(f"{reply.status // 100}xx")
            bodies += [reply.body] if reply.status < 300 else []
        usable = False
        try:
            async with asyncio.timeout(WAIT_S):
                usable = b"probe" in (await client.ask(PROBE)).body
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError, ValueError, IndexError, RuntimeError):
            pass
    finally:
        client.abort()
    saw = tuple((one.method, one.target, one.body) for one in engine.requests if "probe" not in one.target)
    return Seen(tuple(statuses), tuple(bodies), saw, usable)


@pytest.mark.long("a hundred transcripts to two proxies, some of which have to time out", timeout=90)
def test_the_same_requests_mean_the_same_or_differ_for_a_reason(tmp_path: Path) -> None:
    async def test() -> None:
        async with stand(_engine, passthrough=["/*"]) as s, nginx(s.engine.url, tmp_path) as peer:
            for name, transcript in REQUESTS.items():
                ours = await _play(s.gateway.url, s.engine, transcript)
                theirs = await _play(peer, s.engine, transcript)
                judge(name, ours, theirs)

    run(test(), within=80)


@pytest.mark.long("some answers have to time out at both proxies", timeout=90)
def test_the_same_answers_arrive_the_same_or_differ_for_a_reason(tmp_path: Path) -> None:
    async def test() -> None:
        async with stand(_engine, passthrough=["/*"]) as s, nginx(s.engine.url, tmp_path) as peer:
            for number, name in enumerate(ANSWERS):
                transcript = Transcript(request(path=f"/answers/{number}", method="GET"))
                ours = await _play(s.gateway.url, s.engine, transcript)
                theirs = await _play(peer, s.engine, transcript)
                judge(name, ours, theirs)

    run(test(), within=80)
