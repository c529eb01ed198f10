"""nginx configuration: what holds at each location that passes requests on, inherited directives included.

Every such location gives settings `nginx.…` with its name as their scope. What no block sets is nginx's default, and
`nginx.unset` names those directives. Included files are named and not followed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.diagnose.observed import Observed, Place, Setting, Understood
from tailrace.diagnose.readers.format import Format, UnknownFormatError
from tailrace.diagnose.readers.nginx_text import Directive, duration_ms, parse_nginx
from tailrace.model.errors import InputError

__all__ = ["NGINX_CONF", "looks_like_nginx", "nginx_settings"]

_NAME: Final = "nginx configuration"
_LARGEST: Final = 4 << 20
_PASSES: Final = frozenset({"proxy_pass", "grpc_pass", "fastcgi_pass", "uwsgi_pass"})
_TIMES: Final = {
    "proxy_read_timeout": 60_000.0,
    "proxy_send_timeout": 60_000.0,
    "proxy_connect_timeout": 60_000.0,
    "send_timeout": 60_000.0,
    "grpc_read_timeout": 60_000.0,
    "fastcgi_read_timeout": 60_000.0,
    "uwsgi_read_timeout": 60_000.0,
    "keepalive_timeout": 75_000.0,
    "proxy_next_upstream_timeout": 0.0,
}
"""Directive -> nginx's default (ms)."""
_ONLY_SET: Final = frozenset({"keepalive_timeout", "proxy_next_upstream_timeout", "send_timeout", "proxy_send_timeout"})
"""Their defaults are nobody's finding: told only where somebody set them."""
_WORDS: Final = {
    "proxy_buffering": "on",
    "proxy_http_version": "1.0",
    "proxy_request_buffering": "on",
    "proxy_cache": "off",
    "gzip": "off",
    "gzip_types": "text/html",
    "proxy_next_upstream": "error timeout",
    "proxy_next_upstream_tries": "0",
    "chunked_transfer_encoding": "on",
}
_SIZES: Final = frozenset({"proxy_buffers", "proxy_buffer_size", "proxy_busy_buffers_size"})
_TOLD: Final = ("proxy_buffering", "proxy_http_version")
"""Defaults that decide how a stream passes: told for every location."""
_KNOWN: Final = re.compile(
    r"^[^\S\n]{0,400}(?:server\s*\{|http\s*\{|events\s*\{|stream\s*\{|upstream\s+\S+\s*\{|location\s+[^{;]+\{"
    r"|proxy_\w+\s+[^;{}]+;|listen\s+[^;{}]+;|worker_processes\s+[^;{}]+;)",
    re.MULTILINE,
)
_MOST_PLACES: Final = 5000


class _Scope(NamedTuple):
    """The directives in force in a block: name -> where it was set."""

    set: dict[str, Directive]
    name: str


_BLOCKS: Final = re.compile(r"\b(?:http|server|location)\b[^;{}]*\{")


def looks_like_nginx(text: str) -> bool:
    """Whether a text is nginx's: a block or a directive of it, and semicolons."""
    return ";" in text and _KNOWN.search(text) is not None


def _matches(head: str, name: str) -> bool:
    start = head.lstrip()
    if start[:1] in {"{", "[", "|", "<"} or name.endswith((".yaml", ".yml", ".json", ".py")):
        return False
    # YAML may hold such a text in a literal block; a log may quote a directive.
    yaml = re.match(r"(?:---|apiVersion:|kind:|[\w-]+:\s*(?:$|[|>]))", start, re.MULTILINE)
    found = _KNOWN.search(head)
    if found is None or yaml is not None or ";" not in head:
        return False
    before = head[: found.start()]
    return not re.search(r"\[\w+\.py:\d+\]|\bHTTP/1\.[01]\"", before)


def _read(path: Path, name: str) -> Observed:
    if path.stat().st_size > _LARGEST:
        raise InputError(
            f"is larger than {_LARGEST >> 20} MiB", place=str(path), remedy="Give the file with the server's block."
        )
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    settings, understood = nginx_settings(text, name)
    if not settings and not _BLOCKS.search(text):
        # Whoever quotes the directives in question leaves the block around them out.
        part = f"server {{ location / {{ proxy_pass http://upstream;\n{text}\n}} }}"
        settings, understood = nginx_settings(part, name, offset=-1)
        settings = [one for one in settings if not one.name.startswith("nginx.unset") and "proxy_pass" not in one.name]
    if not settings:
        raise UnknownFormatError(
            "no location of it passes requests on",
            place=str(path),
            remedy="Give the file in which proxy_pass stands (`nginx -T` prints all of them).",
        )
    return Observed(settings=settings, understood=[understood])


def nginx_settings(text: str, name: str, *, offset: int = 0) -> tuple[list[Setting], Understood]:
    """The settings of a configuration; `offset` lines stand before it in its file."""
    top, wrong = parse_nginx(text)
    out: list[Setting] = []
    includes: list[str] = []
    count = 0
    left: list[tuple[list[Directive], _Scope]] = [(top, _Scope({}, ""))]
    upstreams: dict[str, Directive] = {}
    while left:
        block, around = left.pop(0)
        inner = _Scope({**around.set, **_plain(block)}, around.name)
        count += len(block)
        includes += [
            f"{one.line + offset}: include {one.value} is not followed" for one in block if one.name == "include"
        ]
        if any(one.name in _PASSES for one in block) and len(out) < _MOST_PLACES:
            out += _location(block, inner, name, offset)
        for one in block:
            if one.block is None:
                continue
            if one.name == "upstream":
                upstreams[one.value] = one
                continue
            title = around.name
            if one.name in {"location", "if", "limit_except"}:
                title = f"{one.name} {one.value}".strip()
            elif one.name == "server":
                title = _server(one)
            left.append((one.block, _Scope(inner.set, title)))
    out += _upstreams(upstreams, name, offset)
    problems = [*(_moved(item, offset) for item in wrong), *includes]
    return out, Understood(
        source=name,
        format=_NAME,
        understood=count,
        total=count + len(problems),
        what="directives",
        examples=problems[:3],
    )


def _moved(problem: str, offset: int) -> str:
    line, _, rest = problem.partition(": ")
    return f"{int(line) + offset}: {rest}"


def _plain(block: list[Directive]) -> dict[str, Directive]:
    return {one.name: one for one in block if one.block is None}


def _server(one: Directive) -> str:
    named = next((inner.value for inner in one.block or [] if inner.name in {"server_name", "listen"}), "")
    return f"server {named}".strip()


def _location(  # noqa: C901  (one table after the other)
    block: list[Directive], scope: _Scope, name: str, offset: int
) -> list[Setting]:
    passing = next(one for one in block if one.name in _PASSES)
    title = scope.name or "the whole file"
    here = Place(name, passing.line + offset)

    def setting(key: str, value: object, directive: Directive | None, unit: str = "") -> Setting:
        place = Place(name, directive.line + offset) if directive is not None else here
        return Setting(name=f"nginx.{key}", value=value, unit=unit, scope=title, place=place)

    out = [setting(passing.name, passing.value, passing)]
    unset: list[str] = []
    protocol = passing.name.removesuffix("_pass")
    for key, default in _TIMES.items():
        if key.startswith(("grpc_", "fastcgi_", "uwsgi_", "proxy_")) and not key.startswith(f"{protocol}_"):
            continue
        directive = scope.set.get(key)
        if directive is None:
            if key not in _ONLY_SET:
                unset.append(key)
                out.append(setting(key, default, None, "ms"))
            continue
        value = duration_ms(directive.arguments[0]) if directive.arguments else None
        if value is not None:
            out.append(setting(key, value, directive, "ms"))
    for key, word in _WORDS.items():
        directive = scope.set.get(key)
        if directive is not None:
            out.append(setting(key, directive.value.lower(), directive))
        elif key in _TOLD and protocol == "proxy":
            unset.append(key)
            out.append(setting(key, word, None))
    out += [setting(key, scope.set[key].value, scope.set[key]) for key in sorted(_SIZES & scope.set.keys())]
    if unset:
        out.append(setting("unset", unset, None))
    return out


def _upstreams(found: dict[str, Directive], name: str, offset: int) -> list[Setting]:
    out = []
    for title, directive in found.items():
        block = directive.block or []
        servers = [one for one in block if one.name == "server"]
        place = Place(name, directive.line + offset)
        scope = f"upstream {title}"
        out.append(Setting(name="nginx.upstream_servers", value=float(len(servers)), scope=scope, place=place))
        method = next((one.name for one in block if one.name in {"least_conn", "ip_hash", "hash", "random"}), "")
        out.append(Setting(name="nginx.balancing", value=method or "round robin", scope=scope, place=place))
        keepalive = next((one for one in block if one.name == "keepalive" and one.arguments), None)
        if keepalive is not None and keepalive.arguments[0].isdigit():
            out.append(
                Setting(
                    name="nginx.keepalive",
                    value=float(keepalive.arguments[0][:9]),
                    scope=scope,
                    place=Place(name, keepalive.line + offset),
                )
            )
        limits = [found for one in servers for found in re.findall(r"max_conns=(\d{1,9})", one.value)]
        if limits:
            out.append(Setting(name="nginx.max_conns", value=float(min(map(int, limits))), scope=scope, place=place))
    return out


NGINX_CONF: Final = Format(name=_NAME, matches=_matches, read=_read)
