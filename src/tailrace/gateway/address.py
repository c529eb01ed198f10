"""Where an engine is: a URL of HTTP or HTTPS, or a Unix socket (`unix:/run/engine.sock`, `http+unix://%2Frun%2F…`)."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

UNIX: Final = "unix:"
HTTP_UNIX: Final = "http+unix://"


class EngineAddress(NamedTuple):
    """An engine's base address in the parts that a client needs."""

    host: str
    """Name or IP address in its ASCII form; `localhost` for a Unix socket."""
    port: int
    tls: bool
    socket: str
    """Path of the Unix socket, or empty."""
    prefix: str
    """Path before every target; a trailing `/v1` is cut, the API's paths bring their own."""

    @property
    def authority(self) -> str:
        """As the `Host` header spells it."""
        bare = f"[{self.host}]" if ":" in self.host else self.host
        return bare if self.socket or self.port == (443 if self.tls else 80) else f"{bare}:{self.port}"

    @property
    def base(self) -> str:
        """Base URL for an HTTP library that brings its own way to a Unix socket."""
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"

    @property
    def place(self) -> str:
        """For messages."""
        return self.socket or f"{self.host}:{self.port}"


def unix_path(url: str) -> str | None:
    """The path of the socket that `url` names; `None` for any other URL."""
    if url.startswith(HTTP_UNIX):
        return unquote(url.removeprefix(HTTP_UNIX).partition("/")[0])
    return url.removeprefix(UNIX) if url.startswith(UNIX) else None


def read_address(url: str) -> EngineAddress:
    """The parts of a base URL that `config.check_url` has passed."""
    path = unix_path(url)
    if path is not None:
        prefix = urlsplit(url).path if url.startswith(HTTP_UNIX) else ""
        return EngineAddress("localhost", 80, tls=False, socket=path, prefix=_cut(prefix))
    parts = urlsplit(url)
    assert parts.hostname is not None
    tls = parts.scheme == "https"
    host = parts.hostname.encode("idna").decode("ascii")
    return EngineAddress(host, parts.port or (443 if tls else 80), tls=tls, socket="", prefix=_cut(parts.path))


def _cut(path: str) -> str:
    return path.rstrip("/").removesuffix("/v1")
