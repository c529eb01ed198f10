"""Files that say what is sent: a request's template, recorded conversations."""

from __future__ import annotations

from tailrace.model.errors import InputError
from tailrace.store.text_file import read_text
from tailrace.workload.conversations import Conversation, read_conversations
from tailrace.workload.template import Template


def template_text(path: str) -> str:
    """The text of a template, checked. Raises `InputError` with file and line."""
    text = _read(path, "--template")
    Template(text, place=path)
    return text


def conversations_file(path: str) -> list[Conversation]:
    """The conversations of a file. Raises `InputError` with file and line."""
    return read_conversations(_read(path, "--conversations").splitlines(keepends=True), place=path)


def _read(path: str, option: str) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise InputError(f"cannot be read ({why})", place=path, remedy=f"Give {option} a text file") from None
