"""Target URLs: from what the user typed to the endpoint paths that it may stand for."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from tailrace.model.errors import InputError
from tailrace.probe.request import ENDPOINTS, Api, api_of

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Url(NamedTuple):
    """A target URL taken apart. `paths` are the endpoint paths it may stand for, likeliest first."""

    tls: bool
    host: str
    port: int
    host_header: str
    paths: tuple[str, ...]

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{'https' if self.tls else 'http'}://{self.host_header}"


def parse_url(text: str, endpoint: str = "", *, verbatim: bool = False) -> Url:
    """Read a base URL, with or without `/v1`, or the whole URL of an endpoint. A missing scheme is `http://`.

    `endpoint` names the API (`chat`, `embeddings`, ...) or gives its path; without it the URL's own end tells, and a
    base URL means chat. `verbatim`: the path is taken as it is, whatever it is.
    """
    remedy = "Give the server's base URL, for example http://localhost:8000"
    whole = text if "://" in text else f"http://{text}"
    try:
        parts: SplitResult = urlsplit(whole)
        port = parts.port
    except ValueError as error:
        raise InputError(f"{text!r} is no URL ({error})", place="URL", remedy=remedy) from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.username is not None:
        raise InputError(f"{text!r} is no http:// or https:// URL of a server", place="URL", remedy=remedy)
    if any(c <= " " or c > "~" for c in parts.path + parts.query):
        raise InputError(f"the path of {text!r} has characters that must be percent-encoded", place="URL")
    default = _DEFAULT_PORTS[parts.scheme]
    query = f"?{parts.query}" if parts.query else ""
    paths = (parts.path or "/",) if verbatim else _paths(parts.path.rstrip("/"), endpoint)
    host = parts.hostname
    shown = f"[{host}]" if ":" in host else host
    header = shown if port in (None, default) else f"{shown}:{port}"
    return Url(parts.scheme == "https", host, port or default, header, tuple(path + query for path in paths))


def _paths(path: str, endpoint: str) -> tuple[str, ...]:
    own = api_of(path)
    if not endpoint:
        if own:
            return (path,)
        wanted = Api.CHAT
    elif endpoint.startswith("/"):
        if not api_of(endpoint):
            raise InputError(
                f"{endpoint} is no path of a known API",
                place="--endpoint",
                remedy=f"Choose {', '.join(ENDPOINTS)}; --template sends any body to any URL",
            )
        return (endpoint,)
    elif endpoint in ENDPOINTS:
        wanted = ENDPOINTS[endpoint]
        if own is wanted:
            return (path,)
        if own:
            path = path.removesuffix(own)
    else:
        raise InputError(
            f"there is no endpoint {endpoint!r}", place="--endpoint", remedy=f"Choose {', '.join(ENDPOINTS)}"
        )
    if path.rpartition("/")[2] in ("v1", "v2", "v3", "openai"):
        return (path + wanted,)
    return (path + "/v1" + wanted, path + wanted)
