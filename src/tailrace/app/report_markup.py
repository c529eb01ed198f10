"""HTML for the report: everything that comes from a run passes through `text`, so that markup in it stays text."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from tailrace.figures.picture import Picture

__all__ = ["ABSENT", "Cell", "Section", "card", "cell", "facts", "figure", "ms", "row", "table", "text"]

ABSENT: Final = "\N{EN DASH}"
_LIMIT: Final = 400
_JOINED: Final = "\u00a0"
"""Between a number and its unit: no line breaks there. Python does not call it printable."""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the page: its markup, and the pictures that its plots show, by name."""

    markup: str
    pictures: list[Picture] = []


class Cell(str):
    """Markup that is safe already."""

    __slots__ = ()


def text(value: object, limit: int = _LIMIT) -> Cell:
    """`value` as text: escaped, control characters out, shortened."""
    kept = "".join(char if char.isprintable() or char == _JOINED else " " for char in str(value))
    if len(kept) > limit:
        kept = kept[: limit - 1] + "…"
    return Cell(html.escape(kept, quote=True))


def ms(value: float | None) -> str:
    """Milliseconds for a table: enough digits to compare, none that say nothing."""
    if value is None:
        return ABSENT
    if value >= 10_000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def cell(value: object, kind: str = "", *, small: str = "", title: str = "", span: int = 1) -> Cell:
    """One `td`; `small` stands below the value."""
    inside = value if isinstance(value, Cell) else text(value)
    attributes = f' class="{kind}"' if kind else ""
    attributes += f' title="{text(title)}"' if title else ""
    attributes += f' colspan="{span}"' if span > 1 else ""
    below = f"<small>{text(small)}</small>" if small else ""
    return Cell(f"<td{attributes}>{inside}{below}</td>")


def row(head: object, cells: Iterable[Cell], kind: str = "") -> Cell:
    """A row whose first cell is its heading."""
    inside = head if isinstance(head, Cell) else text(head)
    attributes = f' class="{kind}"' if kind else ""
    return Cell(f'<tr{attributes}><th scope="row">{inside}</th>{"".join(cells)}</tr>')


def table(heads: Sequence[str], rows: Iterable[Cell], *, caption: str, words: Collection[str] = ()) -> Cell:
    """A table that scrolls by itself where it is wider than the page.

    The first column and those that `words` names hold text, the others numbers. `caption` is for screen readers.
    """
    head = "".join(
        f'<th scope="col"{" class=number" if place and name not in words else ""}>{text(name)}</th>'
        for place, name in enumerate(heads)
    )
    return Cell(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}"><table>'
        f'<caption class="hidden">{text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def facts(pairs: Iterable[tuple[str, object]], limit: int = 600) -> Cell:
    """Names with what is known of each, as text; each pair stays together where the list is set in columns."""
    body = "".join(
        f"<div><dt>{text(name, 80)}</dt><dd>{value if isinstance(value, Cell) else text(value, limit)}</dd></div>"
        for name, value in pairs
    )
    return Cell(f'<dl class="facts">{body}</dl>')


def card(kicker: str, title: str, inside: str, *, note: str = "", name: str = "") -> Cell:
    """A card of the page with its heading."""
    aside = f'<p class="aside">{text(note)}</p>' if note else ""
    mark = f' id="{text(name)}"' if name else ""
    head = f'<p class="kicker">{text(kicker)}</p><h2>{text(title)}</h2>{aside}'
    return Cell(f'<section class="card"{mark}>{head}{inside}</section>')


def figure(kicker: str, picture: Picture) -> Cell:
    """A card with a plot: its sentence, how to read it, and its numbers in words where no script runs."""
    if picture.empty:
        return card(kicker, picture.title, f'<p class="empty">{text(picture.empty)}</p>')
    words = f"{picture.title}. {picture.alt or picture.note}"
    # The words are longer than other text may be: they are the whole figure for who cannot see it.
    return card(
        kicker,
        picture.title,
        f'<div class="plot" role="img" aria-label="{text(words, 4000)}" data-picture="{text(picture.name)}">'
        f'<p class="aside">{text(picture.alt or picture.note, 4000)}</p></div>',
        note=picture.note,
    )
