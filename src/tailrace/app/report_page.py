"""The report as one file: styles, Plotly and the data are in it, and nothing is ever fetched.

A content security policy in the document itself allows exactly its own scripts (by their hashes) and no request at
all, so that even markup that slipped through could neither run nor call home.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Final

import msgspec

from tailrace.app.report_markup import Section, text
from tailrace.figures.picture import Picture
from tailrace.web.assets import plotly_path, stage_styles

__all__ = ["document"]

_STYLES: Final = ("style.css", "report.css")
_SCRIPTS: Final = ("shrink.js", "report.js")


def document(*, title: str, subtitle: str, sections: Sequence[Section], footer: str) -> str:
    """The whole page. `title`, `subtitle` and `footer` are text; the sections' markup is made safe already."""
    pictures = [picture for section in sections for picture in section.pictures if not picture.empty]
    styles = "".join(_static(name) for name in _STYLES) + stage_styles()
    library = plotly_path().read_text(encoding="utf-8") if pictures else ""
    own = "\n".join(_static(name).replace("export function", "function") for name in _SCRIPTS)
    scripts = [library, f"(() => {{\n{own}\n}})();"] if pictures else []
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts)) or repr('none')}; "
        "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    body = "".join(section.markup for section in sections)
    return f"""<!doctype html>
<html lang="en" data-theme="light">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light">
<title>{text(title)} · Tailrace</title>
<style>{styles}</style>
</head>
<body class="report">
<a class="skip" href="#main">Skip to the numbers</a>
<header><div class="brand"><h1>{text(title)}</h1><span class="target">{text(subtitle)}</span></div></header>
<main id="main" tabindex="-1">
{body}
</main>
<footer><p>{text(footer, 2000)}</p></footer>
<script type="application/json" id="pictures">{_data(pictures)}</script>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def _static(name: str) -> str:
    return resources.files("tailrace.web").joinpath("static", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _data(pictures: Sequence[Picture]) -> str:
    """JSON inside a script element: no `<` may be in it, or a hostile name could end the element."""
    encoded = msgspec.json.encode(
        {picture.name: {"data": picture.data, "layout": picture.layout} for picture in pictures}
    )
    return encoded.decode().replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
