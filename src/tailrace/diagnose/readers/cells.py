"""What a cell of a table says: a number with its unit, a range, a change in percent, a factor, nothing, or text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from tailrace.diagnose.readers.heading import plain
from tailrace.diagnose.readers.units import unit_of

__all__ = ["Cell", "decimal_comma", "dots_are_thousands", "number_of", "read_cell"]

_MISSING: Final = frozenset({"", "-", "--", "n/a", "na", "nan", "none", "null", "?", "tbd", "…", "...", "/"})
_GROUPED: Final = re.compile(r"[+\-]?(?:\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d{2})+,\d{3})(?:[eE].*)?$")
"""Thousands set apart by commas; in India the groups beyond them have two digits."""
_DOTTED: Final = re.compile(r"[+\-]?[1-9]\d{0,2}(?:\.\d{3})+$")
_DOTTED_COMMA: Final = re.compile(r"[+\-]?\d{1,3}(?:\.\d{3})+,\d+\D*$")
_NUMBER: Final = r"[+\-]?(?:\d{1,3}(?:[ '_]\d{3})+(?![\d])(?:[.,]\d+)?|\d[\d.,]*|\.\d+)(?:[eE][+\-]?\d{1,3})?"
_UNIT: Final = r"%|[A-Za-zµ°/℃]{1,12}(?:/s(?:ec)?)?"
_CELL: Final = re.compile(
    rf"^(?P<mark>[~≈<>≤≥]|about|ca\.?|approx\.?)?\s*(?P<factor>x)?\s*(?P<low>{_NUMBER})\s*(?P<unit>{_UNIT})?"
    rf"(?:\s*(?:to|\.\.\.?|…|-)\s*(?P<high>{_NUMBER})\s*(?P<unit2>{_UNIT})?)?"
    rf"(?:\s*(?:±|\+/-|\+-)\s*(?P<spread>{_NUMBER})\s*(?:{_UNIT})?)?"
    rf"(?:\s*[(\[,]\s*(?P<factor2>x)?(?P<change>{_NUMBER})\s*(?P<change_unit>%|x)\s*[)\]]?)?"
    rf"\s*(?:\((?P<rest>[^()]*)\))?\s*(?P<flag>[✅❌⚠✓✗🔴🟢🎉️*†‡]*)$"
)
_VERSION: Final = re.compile(r"^v?\d+\.\d+\.\d+|^\d{4}-\d\d|^\d{1,2}:\d\d|^v\d")
_COMMA_DECIMAL: Final = re.compile(r"^\D*(?:0,\d+|\d+,\d{1,2}|\d+,\d{4,}|\d{1,3}(?:\.\d{3})+,\d+)\D*$")
_LONGEST_NUMBER: Final = 40
_LONGEST_CELL: Final = 80
_SCALES: Final = {"k": 1e3, "K": 1e3, "M": 1e6}


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell."""

    text: str
    """Without marks of emphasis."""
    value: float | None = None
    high: float | None = None
    """The upper end of a range."""
    unit: str = ""
    change: float | None = None
    """A change in percent that stands behind the value: `120 ms (-35 %)`."""
    signed: bool = False
    """It was written with its sign."""
    note: str = ""
    """What stood in brackets behind it."""

    @property
    def missing(self) -> bool:
        """Nothing stands there."""
        return self.value is None and self.text.lower() in _MISSING


def decimal_comma(texts: Iterable[str]) -> bool:
    """Whether the commas of a column are decimal ones: one cell that can be read in no other way tells."""
    return any(_COMMA_DECIMAL.match(text) for text in texts if "," in text)


def dots_are_thousands(text: str) -> bool:
    """Whether a cell says for its whole table that a comma is decimal and dots set thousands apart: `1.234,5`."""
    return "," in text and "." in text and _DOTTED_COMMA.match(plain(text)) is not None


def number_of(text: str, *, comma: bool = False) -> float | None:
    """`25,200`, `1 234.5`, `1.234,5`, `-3`, `1e3` as a number; `None` when it is none.

    `comma` says that a comma is a decimal one. Without it a comma before exactly three digits separates thousands.
    """
    plain_text = re.sub(r"[ ']|(?<=\d)_(?=\d{3})", "", plain(text))
    if len(plain_text) > _LONGEST_NUMBER:
        return None
    dot, comma_at = plain_text.rfind("."), plain_text.rfind(",")
    if comma_at >= 0:
        if dot > comma_at:
            plain_text = plain_text.replace(",", "")
        elif dot >= 0:
            plain_text = plain_text.replace(".", "").replace(",", ".")
        elif comma or not _GROUPED.match(plain_text):
            if plain_text.count(",") > 1:
                return None
            plain_text = plain_text.replace(",", ".")
        else:
            plain_text = plain_text.replace(",", "")
    elif plain_text.count(".") > 1 or (comma and _DOTTED.match(plain_text)):
        if not re.match(r"^[+\-]?\d{1,3}(\.\d{3})+$", plain_text):
            return None
        plain_text = plain_text.replace(".", "")
    try:
        value = float(plain_text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def read_cell(text: str, *, comma: bool = False) -> Cell:
    """Read one cell. `comma`: as of `number_of`."""
    said = plain(text)
    found = None if not said or len(said) > _LONGEST_CELL or _VERSION.match(said) else _CELL.match(said)
    return Cell(text=said) if found is None else _numbers(said, found, comma=comma) or Cell(text=said)


def _numbers(said: str, found: re.Match[str], *, comma: bool) -> Cell | None:
    """The cell that `found` describes; `None` where its parts do not go together."""
    low = number_of(found["low"], comma=comma)
    high = number_of(found["high"].lstrip("+-"), comma=comma) if found["high"] else None
    written = [text for text in (found["unit"], found["unit2"]) if text]
    scale = _SCALES.get(written[0], 1.0) if written else 1.0
    units = {unit_of(text) for text in written if text not in _SCALES}
    if low is None or (high is not None and high < low) or "" in units or len(units) > 1:
        return None
    change = number_of(found["change"], comma=comma) if found["change"] else None
    if change is not None and found["change_unit"] == "x":
        change = (change - 1.0) * 100.0
    return Cell(
        text=said,
        value=low * scale,
        high=None if high is None else high * scale,
        unit="x" if found["factor"] else next(iter(units), ""),
        change=change,
        signed=said[:1] in {"+", "-"},
        note=(found["rest"] or "").strip(),
    )
