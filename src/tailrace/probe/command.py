"""The command line as a run file may hold it: without secrets.

A run file is sent to colleagues and attached to pull requests, so what could be a secret is masked by its name, not
by its looks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

MASK: Final = "***"
_SECRET: Final = re.compile(r"auth|cookie|key|token$|^token|secret|passw|credential|signature|session", re.IGNORECASE)
_HARMLESS: Final = re.compile(
    r"(max|min|prompt|output|input|completion|total|stop|pad|eos|bos)[-_]?(\w+[-_])?tokens?(_ids?)?$", re.IGNORECASE
)
_SECRET_OPTIONS: Final = ("--api-key", "--token", "--admin-token")
_HEADER_OPTION: Final = "--header"
_TEXT_OPTION: Final = "--prompt"
"""Prompts are stored nowhere that nobody asked for it."""
_HIDING: Final = (*_SECRET_OPTIONS, _HEADER_OPTION, _TEXT_OPTION)
_URL: Final = re.compile(r"(\w[\w+.-]*://)[^/@\s]*@")
_QUERY: Final = re.compile(r"([?&;])([^=&;#\s]+)=([^&;#\s]*)")
_MEMBER: Final = re.compile(r'("((?:[^"\\]|\\.)*)"\s*:\s*)("(?:[^"\\]|\\.)*"?|\[[^\]]*\]?|[^\s,}{\]"]+)')


def masked(words: Sequence[str]) -> str:
    """The words of a command line as one line that a shell would read back, with secrets as `***`."""
    out: list[str] = []
    hide = ""
    for word in words:
        if hide:
            out.append(_value(hide, word))
            hide = ""
            continue
        name, equals, value = word.partition("=")
        if name in _HIDING and equals:
            out.append(f"{name}={_value(name, value)}")
        else:
            hide = name if name in _HIDING else ""
            out.append(_free(word))
    return shlex.join(out)


def _value(option: str, value: str) -> str:
    if option == _TEXT_OPTION:
        return f"{MASK} ({len(value)} characters)"
    if option != _HEADER_OPTION:
        return MASK
    name, colon, _ = value.partition(":")
    return f"{name}: {MASK}" if colon and _is_secret(name.strip()) else _free(value)


def _is_secret(name: str) -> bool:
    return bool(_SECRET.search(name)) and not _HARMLESS.search(name)


def _free(word: str) -> str:
    """Secrets inside a word: a URL's user and query, members of a JSON object."""
    word = _URL.sub(rf"\1{MASK}@", word)
    if "://" in word:
        word = _QUERY.sub(lambda m: f"{m[1]}{m[2]}={MASK}" if _is_secret(m[2]) else m[0], word)
    if '"' in word:
        word = _MEMBER.sub(lambda m: f'{m[1]}"{MASK}"' if _is_secret(m[2]) else m[0], word)
    return word
