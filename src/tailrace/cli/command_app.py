"""The Typer application of one command: help as plain text that fits 80 columns, options under their headings.

Typer's own layout draws boxes whose columns cut long option names (`--max-num-batche…`) and breaks paragraphs where the
docstring broke its lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

F = TypeVar("F", bound=Callable[..., Any])

_EXAMPLE = "Example: "
_UNKNOWN = object()
_AS_IT_IS = "\b\n"
"""Before a paragraph that click is not to wrap."""


def laid_out(text: str | None) -> str | None:
    """An example stands on a line of its own, whole, so that it can be copied; indented paragraphs stay as they are."""
    if not text:
        return text
    paragraphs = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith(_EXAMPLE):
            command = " ".join(paragraph.removeprefix(_EXAMPLE).split())
            paragraphs.append(f"{_AS_IT_IS}Example:\n  {command}")
        elif paragraph.startswith(" "):
            paragraphs.append(_AS_IT_IS + paragraph.rstrip())
        else:
            paragraphs.append(paragraph.strip())
    return "\n\n".join(paragraphs)


class _AsTyped:
    """A parameter of words, or a flag that nobody set: nothing is converted. Typer from 0.29 on imports pydantic for
    it, which is a tenth of a second of every command; from its own `RuntimeParam` this is what is left without that.
    """

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """The words as they were typed; a list of them where several may be given."""
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        if param.type_descriptor.annotation is bool:
            param._runtime_param = None  # noqa: SLF001  (what an environment variable says of a flag is typer's)
            return param.get_runtime_param().coerce(value, param=param, ctx=ctx)
        return list(value) if several else value


def _is_plain(parameter: Any) -> bool:
    """Whether nothing but words, or yes or no, is asked for, and typer has not made its conversion yet."""
    described = getattr(parameter, "type_descriptor", None)
    if described is None or getattr(parameter, "_runtime_param", _UNKNOWN) is not None:
        return False
    several = parameter.multiple or parameter.nargs == -1
    plain = (list[str],) if several else (str, bool)
    return described.annotation in plain and described.parameter_info.parser is None


class PlainCommand(TyperCommand):
    """A command whose help groups its options by `rich_help_panel`, in plain text."""

    def __init__(self, name: str | None, **given: Any) -> None:
        super().__init__(
            name, **{**given, "help": laid_out(given.get("help")), "epilog": laid_out(given.get("epilog"))}
        )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As click's; parameters of words get by without typer's conversion."""
        for parameter in filter(_is_plain, self.get_params(ctx)):
            setattr(parameter, "_runtime_param", _AsTyped())  # noqa: B010  (typer has no other place for it)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then the named groups as they were written, then the rest."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        rest: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is None:
                continue
            heading = getattr(parameter, "rich_help_panel", None)
            if heading is None and parameter.param_type_name == "argument":
                heading = "Arguments"
            (rest if heading is None else groups.setdefault(heading, [])).append(row)
        for heading, rows in [*groups.items(), ("Options", rest)]:
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


class CommandApp(typer.Typer):
    """`typer.Typer` with this tool's habits: plain help, no shell completion, no decorated tracebacks."""

    def __init__(self, **given: Any) -> None:
        if "epilog" in given:
            given["epilog"] = laid_out(given["epilog"])
        super().__init__(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, **given)

    def command(self, name: str | None = None, **given: Any) -> Callable[[F], F]:
        """As `typer.Typer.command`, with `PlainCommand`."""
        return super().command(name, cls=PlainCommand, **given)
