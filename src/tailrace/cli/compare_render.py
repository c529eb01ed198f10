"""The forms in which a comparison is printed, each from the result alone."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final

from tailrace.model.errors import InputError

if TYPE_CHECKING:
    from tailrace.model.measurement import Comparison, ComparisonSet, EngineView

    Result = Comparison | ComparisonSet | EngineView

__all__ = ["FORMS", "renderer"]

FORMS: Final = {
    "text": "compare_print:as_text",
    "markdown": "compare_markdown:as_markdown",
    "json": "compare_render:as_json",
}
"""Form -> module of this package and function: result -> text that ends with a newline."""


def renderer(form: str) -> Callable[[Result], str]:
    """The function that prints a result in this form; InputError lists the forms."""
    if form not in FORMS:
        raise InputError(f"there is no form {form!r}", place="--format", remedy=f"Use one of {', '.join(FORMS)}.")
    module, _, function = FORMS[form].partition(":")
    found: Callable[[Result], str] = getattr(import_module(f"tailrace.cli.{module}"), function)
    return found


def as_json(result: Result) -> str:
    """One JSON object."""
    import msgspec

    return msgspec.json.encode(result).decode() + "\n"
