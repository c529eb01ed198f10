"""HTTP/1.1 heads: which headers travel, what a sound request head is, how heads are written.

llhttp refuses what is malformed byte by byte (bare LF, folded lines, Content-Length beside Transfer-Encoding, twice
the same Content-Length). What it leaves to us is here: Host, the transfer codings, the path, the expectations.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

Header = tuple[bytes, bytes]
"""Name as it was written, value."""

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""RFC 9110 §7.6.1 and the old names that still occur: they speak of one connection and never cross us."""

_VERSIONS: Final = frozenset({"1.1", "1.0"})
"""llhttp also reads a 2.0 in the request line; whoever writes that there speaks no HTTP/2."""

_STATUS_LINES: Final = {
    int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode("ascii")) for status in HTTPStatus
}


class HeadError(Exception):
    """A request head that is refused. `status` is ours to answer; the connection cannot be trusted afterwards."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


def status_line(status: int) -> bytes:
    """The status line with its CRLF, also for a status that has no name."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d Status\r\n" % status


def connection_tokens(value: bytes) -> list[bytes]:
    """The members of a `Connection` header, lower case."""
    return [token.strip().lower() for token in value.split(b",")]


def picked(headers: list[Header], names: frozenset[bytes]) -> dict[str, str]:
    """The headers of these names (lower case)."""
    return {name.lower().decode("ascii"): value.decode("latin-1") for name, value in headers if name.lower() in names}


def end_to_end(headers: list[Header], drop: frozenset[bytes]) -> list[Header]:
    """The headers that cross us: without hop-by-hop ones, those that `Connection` names, and those in `drop`."""
    named: set[bytes] = set()
    for name, value in headers:
        if len(name) == 10 and name.lower() == b"connection":
            named.update(connection_tokens(value))
    # `Connection: close` and `keep-alive` name no header, and nobody may take away what frames the message.
    named -= {b"close", b"host", b"content-length", b"content-type", b"authorization"}
    out = []
    for pair in headers:
        name = pair[0].lower()
        if name in HOP_BY_HOP or name in drop or name in named:
            continue
        out.append(pair)
    return out


def check_head(version: str, headers: list[Header]) -> dict[bytes, bytes]:
    """Lower-case name -> first value. Raises `HeadError` for what must not be forwarded.

    Twice the same Host and a missing one are refused (RFC 9112 §3.2: two readers could see two targets), and so is a
    transfer coding that is not plainly `chunked` (§6.1): a proxy and a server that disagree on where a body ends
    let one client's bytes become another's request. `Content_Length` and its like are refused too: servers that keep
    headers as CGI variables read the underscore as a hyphen.
    """
    if version not in _VERSIONS:
        raise HeadError(505, f"HTTP/{version} is not spoken here; HTTP/1.1 is")
    first: dict[bytes, bytes] = {}
    hosts = codings = 0
    for name, value in headers:
        key = name.lower()
        if key == b"host":
            hosts += 1
        elif key == b"transfer-encoding":
            codings += 1
        # llhttp leaves the white space behind a value, which is none of it (RFC 9110 §5.5).
        first.setdefault(key, value.rstrip(b" \t"))
    if hosts != 1 and not (hosts == 0 and version == "1.0"):
        raise HeadError(400, "Host is given twice" if hosts else "Host is missing")
    if hosts and not _sound_host(first[b"host"]):
        raise HeadError(400, "Host is malformed")
    if codings:
        _check_coding(version, first, codings)
    if b"transfer_encoding" in first or b"content_length" in first:
        raise HeadError(400, "a header that frames the body is misspelt")
    return first


def _check_coding(version: str, first: dict[bytes, bytes], codings: int) -> None:
    if codings > 1:
        raise HeadError(400, "Transfer-Encoding is given twice")
    if b"content-length" in first:
        raise HeadError(400, "Content-Length and Transfer-Encoding exclude each other")
    if version == "1.0":
        raise HeadError(400, "HTTP/1.0 has no Transfer-Encoding")
    coding = first[b"transfer-encoding"].strip().lower()
    if coding != b"chunked":
        raise HeadError(501, f"transfer coding {coding[:40].decode('latin-1')!r} is not supported")


def _sound_host(value: bytes) -> bool:
    return bool(value) and not any(byte in value for byte in b" \t/@?#,\\")


def origin_form(target: bytes) -> bytes:
    """`http://host/path` -> `/path`: a client that takes us for a forward proxy still means our path.

    Neither its host nor the `Host` header reaches the engine, which gets its own name: that the two differ misleads
    nobody. A target without a host, or with a user in it, is no HTTP URL (RFC 9110 §4.2) and raises `HeadError`.
    """
    if not target[:8].lower().startswith((b"http://", b"https://")):
        return target
    authority, slash, path = target.partition(b"//")[2].partition(b"/")
    authority, question, query = authority.partition(b"?")
    if not _sound_host(authority):
        raise HeadError(400, "the target's host is malformed")
    if question:  # `http://host?query`, whose path is empty
        return b"/?" + query + slash + path
    return b"/" + path


def render_head(start: bytes, headers: list[Header], extra: list[bytes]) -> bytes:
    """A whole head: start line, `headers`, ready-made `extra` lines (each with its CRLF), empty line."""
    parts = [start]
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
    parts += extra
    parts.append(b"\r\n")
    return b"".join(parts)


def chunk(data: bytes) -> bytes:
    """One chunk of the chunked transfer coding. `data` must not be empty: an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK: Final = b"0\r\n\r\n"


_NO_JSON: Final = (b"multipart/", b"audio/", b"video/", b"image/")


def is_json(named: dict[bytes, bytes]) -> bool:
    """Whether the body of an inference call is JSON: whatever is no form, sound, picture or plain bytes is.

    Clients leave the header out, and `curl -d` calls everything a form of its own; engines read all of it as JSON.
    Triton's clients leave it out of JSON that tensors follow as they are, too; another header says so.
    """
    if b"inference-header-content-length" in named:
        return False
    kind = named.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    return kind != b"application/octet-stream" and not kind.startswith(_NO_JSON)


def deadline_of(named: dict[bytes, bytes], received: int) -> int | None:
    """The instant (ns) that `x-deadline-ms` names, counted from `received`; `None` where it is absent or no number.

    A fraction of a millisecond is left out: clients that reckon in seconds send `1500.0`.
    """
    raw = named.get(b"x-deadline-ms")
    if raw is None:
        return None
    whole, dot, fraction = raw.partition(b".")
    if not whole.isdigit() or len(whole) > 12 or (dot and not fraction.isdigit()):
        return None
    return received + int(whole) * 1_000_000
