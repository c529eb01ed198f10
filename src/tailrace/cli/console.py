"""The console of commands that show what servers and files have said."""

from __future__ import annotations

from typing import Any

import rich.console
from rich.text import Text

from tailrace.cli.printable import printable

__all__ = ["Console"]


class Console(rich.console.Console):
    """Rich's own, through which no model's name or error text reaches the terminal as a command to it.

    Nor is it markup, unless asked for: a model may be called `a[/b]`, on which Rich would end with an error.
    """

    def __init__(self, **given: Any) -> None:
        """As Rich's, without markup."""
        super().__init__(**{"markup": False, **given})

    def render_str(self, text: str, **how: Any) -> Text:
        """As Rich does, of printable text."""
        return super().render_str(printable(text), **how)
