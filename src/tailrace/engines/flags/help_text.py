"""An engine's own `--help` as a table of its options: argparse (vLLM, SGLang), llama.cpp's list, clap (TGI).

What the installed program says of itself beats any table that somebody wrote down.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from tailrace.engines.flags.option import Option, OptionTable, Takes

_HEAD: Final = re.compile(r"^ {0,8}(-{1,2}[A-Za-z].*)$")
_COMMA: Final = re.compile(r",\s+(?=-)")
_GAP: Final = re.compile(r"\s{2,}")
_NAME: Final = re.compile(r"(--?[A-Za-z0-9][\w.-]*)(.*)$")
_DEFAULTS: Final = (re.compile(r"\(default:\s*(.*?)\)"), re.compile(r"\[default:\s*(.*?)\]"))
_CHOICES: Final = re.compile(r"\{([^{}]*)\}")
_POSSIBLE: Final = re.compile(r"\[possible values:\s*(.*?)\]")
_LISTED: Final = re.compile(r"^\['(.*)'\]$")
_MOST_CHOICES: Final = 16
_ENGINES: Final = (
    ("vllm", re.compile(r"\bvllm\b", re.IGNORECASE)),
    ("sglang", re.compile(r"\bsglang\b|--mem-fraction-static\b")),
    ("tgi", re.compile(r"text-generation-launcher|--max-batch-prefill-tokens\b", re.IGNORECASE)),
    ("llamacpp", re.compile(r"--ctx-size\b|--ubatch-size\b")),
    ("triton", re.compile(r"--model-repository\b|--model-control-mode\b")),
)
_ENOUGH: Final = 5
"""Fewer options than this are no help text."""


def _entries(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(what stands before the description, the description in one line) of each option."""
    head = ""
    said: list[str] = []
    for line in lines:
        found = _HEAD.match(line)
        if found is not None:
            if head:
                yield head, " ".join(said)
            start, _, first = _GAP.sub("\0", _COMMA.sub(", ", found[1]), count=1).partition("\0")
            head, said = start, [first] if first else []
        elif not line.strip():
            continue
        elif head and line.startswith("      "):
            said.append(line.strip())
        else:
            if head:
                yield head, " ".join(said)
            head, said = "", []
    if head:
        yield head, " ".join(said)


def _split(head: str) -> Iterator[tuple[str, str]]:
    """(name, what it takes) of every spelling of one option."""
    for part in re.split(r",\s*(?=-)", head):
        found = _NAME.match(part.strip())
        # vLLM's page also shows how members are given (`--json-arg '{…}'`, `--json-arg.key1`): examples, no options.
        if found is not None and "." not in found[1] and not found[2].lstrip().startswith("'"):
            yield found[1], found[2].strip(" =")


def _default(said: str) -> str | None:
    for pattern in _DEFAULTS:
        found = pattern.findall(said)
        if found:
            text = str(found[-1]).strip().strip("'\"")
            return None if text in {"None", ""} else text
    return None


def _choices(metavar: str, said: str) -> tuple[str, ...]:
    braces = _CHOICES.search(metavar)
    possible = _POSSIBLE.search(said)
    # A list in brackets (`['auto', 'hf']`) names examples: plug-ins bring more.
    if braces is not None and braces[0] == metavar:
        out = braces[1].split(",")
    elif possible is not None:
        out = [part.strip() for part in possible[1].split(",")]
    else:
        return ()
    return tuple(out) if 0 < len(out) <= _MOST_CHOICES else ()


def _takes(names: list[str], metavar: str) -> Takes:
    if metavar:
        if "..." in metavar and not metavar.startswith("<"):
            return Takes.VALUES
        return Takes.MAYBE if metavar.startswith("[") and not _LISTED.match(metavar) else Takes.VALUE
    return Takes.SWITCH if any(name.startswith("--no-") for name in names) else Takes.NOTHING


def parse_options(text: str) -> list[Option]:
    """Every option that a help text lists, in its order, each once."""
    out: dict[str, Option] = {}
    for head, said in _entries(text.splitlines()):
        spelled = list(_split(head))
        if not spelled:
            continue
        names = [name for name, _ in spelled]
        metavar = next((meta for _, meta in spelled if meta), "")
        kind = _takes(names, metavar)
        own = [name for name in names if name.startswith("--") and not name.startswith("--no-")]
        own = own or [name for name in names if name.startswith("--")] or names
        if own[0].startswith("--no-"):
            kind = Takes.NOTHING
        aliases = tuple(name for name in names if name != own[0] and f"--no-{own[0][2:]}" != name)
        out.setdefault(own[0], Option(own[0], kind, _default(said), _choices(metavar, said), aliases))
    return list(out.values())


def parse_help(text: str, *, engine: str = "", version: str = "", source: str = "--help") -> OptionTable | None:
    """The table in a help text; `None` where it is none.

    `engine` is told by the text where it is not given. The table is complete: the program listed it.
    """
    options = parse_options(text)
    if len(options) < _ENOUGH:
        return None
    name = engine or next((known for known, pattern in _ENGINES if pattern.search(text)), "")
    return OptionTable(
        name,
        options,
        version=version,
        source=source,
        complete=True,
        abbreviations=name in {"vllm", "sglang"},
        underscores=name == "vllm",
    )
