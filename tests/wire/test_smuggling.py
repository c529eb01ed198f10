"""Requests on whose end or target two readers could disagree: refused, however their bytes arrive."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import request
from tests.wire.scripted import Incoming
from tests.wire.stand import run, stand

LINE = b"POST /v1/completions HTTP/1.1\r\n"
HOST = b"Host: a\r\n"
BODY = b'{"model":"m"}'
LENGTH = b"Content-Length: 13\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"d\r\n" + BODY + b"\r\n0\r\n\r\n"
EVIL = b"GET /v1/models/evil HTTP/1.1\r\nHost: a\r\n\r\n"
"""What an attacker wants to be taken for a second request."""

REFUSED = {
    # -- two lengths
    "length and chunked": (LINE + HOST + LENGTH + CHUNKED + b"\r\n" + CHUNKS, 400),
    "chunked and length": (LINE + HOST + CHUNKED + LENGTH + b"\r\n" + CHUNKS, 400),
    "length 0 and chunked": (LINE + HOST + b"Content-Length: 0\r\n" + CHUNKED + b"\r\n" + CHUNKS, 400),
    "two lengths": (LINE + HOST + LENGTH + b"Content-Length: 0\r\n\r\n" + BODY, 400),
    "the same length twice": (LINE + HOST + LENGTH + LENGTH + b"\r\n" + BODY, 400),
    "a list of lengths": (LINE + HOST + b"Content-Length: 13, 13\r\n\r\n" + BODY, 400),
    "length with a comma": (LINE + HOST + b"Content-Length: 13,\r\n\r\n" + BODY, 400),
    "length with a plus": (LINE + HOST + b"Content-Length: +13\r\n\r\n" + BODY, 400),
    "length with a minus": (LINE + HOST + b"Content-Length: -13\r\n\r\n" + BODY, 400),
    "length with a space": (LINE + HOST + b"Content-Length: 1 3\r\n\r\n" + BODY, 400),
    "length in hexadecimal": (LINE + HOST + b"Content-Length: 0xd\r\n\r\n" + BODY, 400),
    "length with an underscore": (LINE + HOST + b"Content-Length: 1_3\r\n\r\n" + BODY, 400),
    "length without digits": (LINE + HOST + b"Content-Length:\r\n\r\n" + BODY, 400),
    "length beyond 64 bits": (LINE + HOST + b"Content-Length: 99999999999999999999999\r\n\r\n" + BODY, 400),
    "length of 64 bits": (LINE + HOST + b"Content-Length: 18446744073709551615\r\n\r\n" + BODY, 413),
    # -- transfer codings in disguise
    "coding before chunked": (LINE + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS, 501),
    "coding after chunked": (LINE + HOST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKS, 400),
    "chunked twice in a line": (LINE + HOST + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + CHUNKS, 400),
    "chunked in two lines": (LINE + HOST + CHUNKED + CHUNKED + b"\r\n" + CHUNKS, 400),
    "empty member before": (LINE + HOST + b"Transfer-Encoding: ,chunked\r\n\r\n" + CHUNKS, 501),
    "empty member after": (LINE + HOST + b"Transfer-Encoding: chunked,\r\n\r\n" + CHUNKS, 400),
    "parameter": (LINE + HOST + b"Transfer-Encoding: chunked;q=1\r\n\r\n" + CHUNKS, 501),
    "quotes": (LINE + HOST + b'Transfer-Encoding: "chunked"\r\n\r\n' + CHUNKS, 501),
    "vertical tab": (LINE + HOST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKS, 400),
    "nearly chunked": (LINE + HOST + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS, 501),
    "identity beside a length": (LINE + HOST + b"Transfer-Encoding: identity\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "empty coding beside a length": (LINE + HOST + b"Transfer-Encoding:\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "coding on the next line": (LINE + HOST + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNKS, 400),
    "underscored coding": (LINE + HOST + b"Transfer_Encoding: chunked\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "underscored length": (LINE + HOST + b"Content_Length: 3\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "NUL in the coding's name": (LINE + HOST + b"Transfer-Encoding\0: chunked\r\n\r\n" + CHUNKS, 400),
    "space before the coding's colon": (LINE + HOST + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKS, 400),
    "space before the coding's name": (LINE + b" Transfer-Encoding: chunked\r\n" + HOST + b"\r\n" + CHUNKS, 400),
    "chunked in HTTP/1.0": (b"POST /v1/completions HTTP/1.0\r\n" + HOST + CHUNKED + b"\r\n" + CHUNKS, 400),
    # -- chunks
    "LF behind a size": (LINE + HOST + CHUNKED + b"\r\nd\n" + BODY + b"\r\n0\r\n\r\n", 400),
    "LF behind a chunk": (LINE + HOST + CHUNKED + b"\r\nd\r\n" + BODY + b"\n0\r\n\r\n", 400),
    "nothing behind a chunk": (LINE + HOST + CHUNKED + b"\r\nd\r\n" + BODY + b"0\r\n\r\n", 400),
    "LF behind the last chunk": (LINE + HOST + CHUNKED + b"\r\nd\r\n" + BODY + b"\r\n0\n\n", 400),
    "LF in an extension": (LINE + HOST + CHUNKED + b"\r\nd;a=b\nX\r\n" + BODY + b"\r\n0\r\n\r\n", 400),
    "CR in an extension": (LINE + HOST + CHUNKED + b"\r\nd;a=b\rX\r\n" + BODY + b"\r\n0\r\n\r\n", 400),
    "NUL in an extension": (LINE + HOST + CHUNKED + b"\r\nd;a=\0\r\n" + BODY + b"\r\n0\r\n\r\n", 400),
    "space behind a size": (LINE + HOST + CHUNKED + b"\r\nd \r\n" + BODY + b"\r\n0\r\n\r\n", 400),
    "size with 0x": (LINE + HOST + CHUNKED + b"\r\n0xd\r\n" + BODY + b"\r\n0\r\n\r\n", 400),
    "size with a sign": (LINE + HOST + CHUNKED + b"\r\n+d\r\n" + BODY + b"\r\n0\r\n\r\n", 400),
    "no size": (LINE + HOST + CHUNKED + b"\r\n\r\n" + BODY + b"\r\n0\r\n\r\n", 400),
    "size beyond 64 bits": (LINE + HOST + CHUNKED + b"\r\n1000000000000000d\r\n" + BODY + b"\r\n0\r\n\r\n", 400),
    "LF in a trailer": (LINE + HOST + CHUNKED + b"\r\nd\r\n" + BODY + b"\r\n0\r\nX: y\n\r\n", 400),
    "length in a trailer": (LINE + HOST + CHUNKED + b"\r\nd\r\n" + BODY + b"\r\n0\r\n" + LENGTH + b"\r\n", 400),
    "coding in a trailer": (LINE + HOST + CHUNKED + b"\r\nd\r\n" + BODY + b"\r\n0\r\n" + CHUNKED + b"\r\n", 400),
    # -- line ends
    "LF behind the request line": (LINE[:-2] + b"\n" + HOST + LENGTH + b"\r\n" + BODY, 400),
    "LF behind a header": (LINE + HOST + b"X-A: b\n" + LENGTH + b"\r\n" + BODY, 400),
    "LF for the empty line": (LINE + HOST + LENGTH + b"\n" + BODY, 400),
    "CR alone in a value": (LINE + HOST + b"X-A: b\rc\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "CR alone for a line end": (LINE + HOST + b"X-A: b\r" + LENGTH + b"\r\n" + BODY, 400),
    "folded line": (LINE + HOST + b"X-A: b\r\n c\r\n" + LENGTH + b"\r\n" + BODY, 400),
    # -- names and values
    "space before a colon": (LINE + b"Host : a\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "space in a name": (LINE + HOST + b"X A: b\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "no name": (LINE + HOST + b": b\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "no colon": (LINE + HOST + b"Foo\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "name that is not ASCII": (LINE + HOST + b"X\xc3\xa9: b\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "NUL in a value": (LINE + HOST + b"X-A: \0\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "control character in a value": (LINE + HOST + b"X-A: \x01\r\n" + LENGTH + b"\r\n" + BODY, 400),
    # -- hosts and targets
    "no Host": (LINE + LENGTH + b"\r\n" + BODY, 400),
    "empty Host": (LINE + b"Host:\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "two Hosts": (LINE + HOST + b"Host: b\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "the same Host twice": (LINE + HOST + b"hOST: a\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "a list of Hosts": (LINE + b"Host: a, b\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "Host with a path": (LINE + b"Host: a/b\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "Host with a user": (LINE + b"Host: u@a\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "target with a user": (b"POST http://u@a/v1/completions HTTP/1.1\r\n" + HOST + LENGTH + b"\r\n" + BODY, 400),
    "target without a host": (b"POST http:///v1/completions HTTP/1.1\r\n" + HOST + LENGTH + b"\r\n" + BODY, 400),
    "space in the target": (b"POST /v1/completions?a b HTTP/1.1\r\n" + HOST + LENGTH + b"\r\n" + BODY, 400),
    "NUL in the target": (b"POST /v1/completions?\0 HTTP/1.1\r\n" + HOST + LENGTH + b"\r\n" + BODY, 400),
    "target that is not ASCII": (b"POST /v1/completions?\xff HTTP/1.1\r\n" + HOST + LENGTH + b"\r\n" + BODY, 400),
    # -- versions
    "HTTP/0.9": (b"GET /v1/models\r\n\r\n", 505),
    "HTTP/0.9 by name": (b"GET /v1/models HTTP/0.9\r\n" + HOST + b"\r\n", 505),
    "HTTP/1.2": (b"GET /v1/models HTTP/1.2\r\n" + HOST + b"\r\n", 400),
    "HTTP/2.0 in HTTP/1's clothes": (b"GET /v1/models HTTP/2.0\r\n" + HOST + b"\r\n", 505),
    "HTTP/2's preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "no version": (b"GET /v1/models HTTP/1\r\n" + HOST + b"\r\n", 400),
    "lower-case version": (b"GET /v1/models http/1.1\r\n" + HOST + b"\r\n", 400),
    "lower-case method": (b"get /v1/models HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a TLS greeting": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
}


@pytest.mark.parametrize("drip", [False, True], ids=["at once", "byte by byte"])
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_and_nothing_behind_it_is_read(name: str, drip: bool) -> None:
    data, status = REFUSED[name]

    async def test() -> None:
        async with stand() as s:
            client = await s.client()
            if drip:
                for index in range(len(data)):
                    client.writer.write(data[index : index + 1])
                    await asyncio.sleep(0)
                client.writer.write(EVIL)
            else:
                client.writer.write(data + EVIL)
            reply = await client.reply()
            assert reply.status == status, reply.body
            assert reply.headers["connection"] == "close"
            assert "date" in reply.headers
            assert await client.closed()
            assert s.engine.requests == []
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.REJECTED, Reason.BAD_REQUEST)

    run(test())


ACCEPTED = {
    "length with leading zeros": LINE + HOST + b"Content-Length: 0013\r\n\r\n" + BODY,
    "length with spaces around": LINE + HOST + b"Content-Length: \t13 \t\r\n\r\n" + BODY,
    "coding in capitals": LINE + HOST + b"Transfer-Encoding: CHUNKED\r\n\r\n" + CHUNKS,
    "coding with spaces around": LINE + HOST + b"Transfer-Encoding: \tchunked \r\n\r\n" + CHUNKS,
    "size with leading zeros": LINE + HOST + CHUNKED + b"\r\n0000000000" + CHUNKS,
    "Connection names the length": LINE + HOST + LENGTH + b"Connection: Content-Length\r\n\r\n" + BODY,
    "Connection names the coding": LINE + HOST + CHUNKED + b"Connection: Transfer-Encoding\r\n\r\n" + CHUNKS,
    "Connection names the host": LINE + HOST + LENGTH + b"Connection: Host\r\n\r\n" + BODY,
    "Host of IPv6": LINE + b"Host: [::1]:8080\r\n" + LENGTH + b"\r\n" + BODY,
    "value that is not ASCII": LINE + HOST + b"X-A: \xc3\xa9\r\n" + LENGTH + b"\r\n" + BODY,
    "empty lines before": b"\r\n\r\n" + LINE + HOST + LENGTH + b"\r\n" + BODY,
    "absolute target": b"POST http://a/v1/completions HTTP/1.1\r\n" + HOST + LENGTH + b"\r\n" + BODY,
    "absolute target of another host": b"POST http://b/v1/completions HTTP/1.1\r\n" + HOST + LENGTH + b"\r\n" + BODY,
    "HTTP/1.0": b"POST /v1/completions HTTP/1.0\r\n" + LENGTH + b"\r\n" + BODY,
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_unusual_and_sound_reaches_the_engine_as_one_plain_request(name: str) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.completion()

    async def test() -> None:
        async with stand(script) as s:
            assert (await s.ask(ACCEPTED[name])).status == 200
            (seen,) = s.engine.requests
            assert (seen.method, seen.target, seen.body) == ("POST", "/v1/completions", BODY)
            assert seen.headers["host"] == s.engine.url.removeprefix("http://")
            assert seen.headers["content-length"] == "13"
            assert "transfer-encoding" not in seen.headers
            assert "connection" not in seen.headers

    run(test())


def test_a_body_that_looks_like_a_request_is_a_body() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reply({"got": incoming.body.decode()})

    async def test() -> None:
        async with stand(script, passthrough=["/x"]) as s:
            client = await s.client()
            for data in (request(EVIL, path="/x"), request(EVIL, path="/x")):
                assert (await client.ask(data)).json["got"] == EVIL.decode()
            assert [incoming.target for incoming in s.engine.requests] == ["/x", "/x"]

    run(test())


@pytest.mark.parametrize("end", [b"\r\n", b"\r\nX-T: 1\r\n\r\n"])
def test_the_zero_chunk_may_be_cut_anywhere(end: bytes) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reply({"got": incoming.body.decode()})

    tail = b"\r\n0" + (b"\r\n\r\n" if end == b"\r\n" else end)
    data = b"POST /x HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n3;a=b\r\nabc" + tail

    async def test() -> None:
        async with stand(script, passthrough=["/x"]) as s:
            client = await s.client()
            for cut in range(len(data) - len(tail), len(data)):
                await client.send(data[:cut])
                await asyncio.sleep(0.001)
                await client.send(data[cut:])
                assert (await client.reply()).json == {"got": "abc"}

    run(test())
