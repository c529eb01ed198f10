"""An option of an engine's command line, and the table of those that one version has."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

_NEAR: Final = 0.72
"""Below this likeness (difflib's ratio) a guess at what was meant would mislead more often than help."""


class Takes(StrEnum):
    """What follows an option."""

    NOTHING = "nothing"
    SWITCH = "switch"
    """Nothing: `--x` is yes and `--no-x` is no."""
    VALUE = "value"
    VALUES = "values"
    MAYBE = "maybe"
    """A value or nothing."""


class Option(msgspec.Struct, frozen=True):
    """One option."""

    name: str
    """The long name with its dashes: `--max-num-seqs`."""
    takes: Takes = Takes.VALUE
    default: str | None = None
    choices: tuple[str, ...] = ()
    """Everything it takes, where the engine lists it and takes nothing else."""
    aliases: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name as a program's variable: `max_num_seqs`."""
        return option_key(self.name)


def option_key(name: str) -> str:
    """`--max-num-seqs` -> `max_num_seqs`."""
    return name.lstrip("-").replace("-", "_")


class Found(msgspec.Struct, frozen=True):
    """How a spelling was understood."""

    option: Option
    negated: bool = False
    """It was the `--no-` form."""
    abbreviated: bool = False
    """It was the beginning of the name, which argparse takes where only one option begins so."""


class OptionTable:
    """The options of one version of one engine."""

    def __init__(
        self,
        engine: str,
        options: Iterable[Option],
        *,
        version: str = "",
        source: str = "",
        complete: bool = False,
        abbreviations: bool = False,
        underscores: bool = False,
    ) -> None:
        """`complete`: a name that is not here does not exist; otherwise it is only not known to us.

        `abbreviations` and `underscores` say how lenient the engine's own parser is.
        """
        self.engine = engine
        self.version = version
        self.source = source
        self.complete = complete
        self._abbreviations = abbreviations
        self._underscores = underscores
        self.options = tuple(options)
        self._by_name: dict[str, Found] = {}
        for option in self.options:
            for name in (option.name, *option.aliases):
                # llama.cpp's short forms of no: `-nocb`, `-no-kvu`.
                no = option.takes is Takes.SWITCH and name != option.name and name.startswith("-no")
                self._by_name.setdefault(name, Found(option, negated=no))
            if option.takes is Takes.SWITCH:
                self._by_name.setdefault(f"--no-{option.name.removeprefix('--')}", Found(option, negated=True))

    def __len__(self) -> int:
        return len(self.options)

    def __contains__(self, name: str) -> bool:
        return self.find(name) is not None

    def canonical(self, name: str) -> str:
        """A spelling with what the engine overlooks taken out: underscores, and what follows a dot (a member)."""
        head = name.partition(".")[0]
        return head.replace("_", "-") if self._underscores and head.startswith("--") else head

    def find(self, name: str) -> Found | None:
        """The option that the engine would take `name` for."""
        wanted = self.canonical(name)
        found = self._by_name.get(wanted)
        if found is not None or not self._abbreviations or not wanted.startswith("--"):
            return found
        begun = {id(one.option): one for known, one in self._by_name.items() if known.startswith(wanted)}
        if len(begun) != 1:
            return None
        one = next(iter(begun.values()))
        return Found(one.option, one.negated, abbreviated=True)

    def nearest(self, name: str) -> str:
        """The known name that looks most like `name`; empty where none does."""
        near = difflib.get_close_matches(self.canonical(name), self._by_name, n=1, cutoff=_NEAR)
        return near[0] if near else ""
