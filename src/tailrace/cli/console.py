"""The console of commands that show what servers and files have said."""

from __future__ import annotations

import textwrap
from typing import Any, Final

import rich.console
from rich.text import Text

from tailrace.cli.printable import printable

__all__ = ["Console"]

_NARROWEST: Final = 40
_WIDEST: Final = 120
"""Longer lines of prose lose the reader's eye."""


class Console(rich.console.Console):
    """Rich's own, through which no model's name or error text reaches the terminal as a command to it.

    Nor is it markup, unless asked for: a model may be called `a[/b]`, on which Rich would end with an error.
    """

    def __init__(self, **given: Any) -> None:
        """As Rich's, without markup."""
        super().__init__(**{"markup": False, **given})

    def put(self, text: str, *, style: str | None = None) -> None:
        """A line for people: on a terminal wrapped at its width, what follows indented below it; elsewhere whole, so
        that `grep` finds what belongs together.
        """
        if self.is_terminal and self.width >= _NARROWEST:
            line = text.lstrip("\n")
            body = line.lstrip(" ")
            margin = " " * (len(line) - len(body))
            text = text[: len(text) - len(line)] + textwrap.fill(
                body,
                width=min(self.width, _WIDEST),
                initial_indent=margin,
                subsequent_indent=margin + "  " if margin else "",
                break_long_words=False,
                break_on_hyphens=False,
            )
        self.print(text, style=style, markup=False)

    def render_str(self, text: str, **how: Any) -> Text:
        """As Rich does, of printable text."""
        return super().render_str(printable(text), **how)
