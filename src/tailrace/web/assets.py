"""The page's files: loaded once, compressed once, named by their content so that browsers keep them for good.

Plotly's JavaScript comes from the installed `plotly` package, found without importing it. Nothing is loaded from
another host.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import hdrs, web

from tailrace.figures.palette import STAGE_COLORS, STAGE_PATTERNS, Theme
from tailrace.model.errors import InputError

FOREVER: Final = "public, max-age=31536000, immutable"
REVALIDATE: Final = "no-cache"
TYPES: Final = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}
# `unsafe-inline` is for style alone: Plotly styles its SVG through attributes and one style element. No foreign text
# reaches markup, so that gives an attacker nothing; scripts stay limited to our own files.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Asset(msgspec.Struct, frozen=True):
    """One file as it goes out."""

    body: bytes
    packed: bytes
    """The same, gzipped."""
    content_type: str
    tag: str
    """The start of the content's SHA-256: its ETag and its version in URLs."""

    @classmethod
    def of(cls, body: bytes, content_type: str, level: int = 6) -> Asset:
        """Compress and name `body`."""
        digest = hashlib.sha256(body).hexdigest()[:16]
        # mtime=0: the same file gives the same bytes in every process.
        return cls(body, gzip.compress(body, level, mtime=0), content_type, digest)

    def answer(self, request: web.Request, cache: str) -> web.Response:
        """200 with the body, or 304 when the browser has it."""
        headers = {**HEADERS, hdrs.CACHE_CONTROL: cache, hdrs.ETAG: f'"{self.tag}"', hdrs.VARY: "Accept-Encoding"}
        if has_tag(request, self.tag):
            return web.Response(status=304, headers=headers)
        body = self.body
        if accepts_gzip(request):
            body = self.packed
            headers[hdrs.CONTENT_ENCODING] = "gzip"
        return web.Response(body=body, content_type=self.content_type, charset="utf-8", headers=headers)


def has_tag(request: web.Request, tag: str) -> bool:
    """Whether `If-None-Match` names this content (weak comparison, RFC 9110 section 13.1.2)."""
    return any(known.value == tag for known in request.if_none_match or ())


def accepts_gzip(request: web.Request) -> bool:
    """Whether the client may be sent gzip. `gzip;q=0` is the only refusal that matters here."""
    offered = request.headers.get(hdrs.ACCEPT_ENCODING, "").lower().replace(" ", "")
    return any(part == "gzip" or (part.startswith("gzip;") and part != "gzip;q=0") for part in offered.split(","))


def static_asset(name: str) -> Asset:
    """A file of this package's `static` folder; the style sheet gets the stage colours appended."""
    body = resources.files("tailrace.web").joinpath("static", name).read_bytes()
    if name == "style.css":
        body += stage_styles().encode()
    return Asset.of(body, TYPES[Path(name).suffix])


def page_html(versions: dict[str, str]) -> Asset:
    """The page with each `{{name}}` replaced by the URL of that file's present content."""
    text = resources.files("tailrace.web").joinpath("static", "page.html").read_text(encoding="utf-8")
    for name, version in versions.items():
        text = text.replace("{{" + name + "}}", f"/page/{name}?v={version}")
    return Asset.of(text.encode(), TYPES[".html"])


def plotly_path() -> Path:
    """Plotly's bundled JavaScript; InputError where the installation is broken."""
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "package_data" / "plotly.min.js"
        if path.is_file():
            return path
    raise InputError("the installed plotly package has no plotly.min.js", remedy="Reinstall it: pip install plotly")


def stage_styles() -> str:
    """CSS for the colours of stages, from the palette that the figures use: there is one list."""

    def variables(theme: Theme) -> str:
        return "".join(f"--stage-{stage}:{color};" for stage, color in STAGE_COLORS[theme].items())

    rules = [
        f'\n:root[data-theme="light"]{{{variables("light")}}}',
        f':root[data-theme="dark"]{{{variables("dark")}}}',
    ]
    rules.extend(
        f'[data-stage="{stage}"],[data-stage^="{stage}."]{{--stage:var(--stage-{stage})}}'
        for stage in STAGE_COLORS["light"]
    )
    for stage, pattern in STAGE_PATTERNS.items():
        if pattern:
            rules.append(f'[data-stage="{stage}"]{{background-image:var(--hatch)}}')
    return "\n".join(rules) + "\n"
