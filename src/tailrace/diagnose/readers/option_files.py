"""Files of options, one a line: `--endpoint.rule2.min-trailing-silence=1.5` (Kaldi, Vosk, sherpa; flags of gflags)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tailrace.diagnose.observed import Observed, Place, Setting, Understood
from tailrace.diagnose.observed.vocabulary import unit_in_name
from tailrace.diagnose.readers.foreign_json import lines
from tailrace.diagnose.readers.format import Format

__all__ = ["OPTION_FILE"]

_NAME: Final = "option file"
_LINE: Final = re.compile(r"^\s*--([A-Za-z][\w.-]{1,80})=(\S.{0,200}?)\s*(?:\\\s*)?$")
_FEWEST: Final = 2
_MOST_OTHERS: Final = 0.2
_LOOKED_AT: Final = 200
_SECRET: Final = re.compile(r"key|token|secret|password", re.IGNORECASE)


def _matches(head: str, name: str) -> bool:  # noqa: ARG001
    told = [line for line in head.splitlines()[:_LOOKED_AT] if line.strip() and not line.lstrip().startswith("#")]
    fits = sum(_LINE.match(line) is not None for line in told)
    return fits >= _FEWEST and fits >= (1.0 - _MOST_OTHERS) * len(told)


def _read(path: Path, name: str) -> Observed:
    settings: list[Setting] = []
    others: list[str] = []
    total = 0
    for number, raw in lines(path):
        line = raw.decode("utf-8", "replace").split(" #")[0].rstrip()
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        total += 1
        found = _LINE.match(line)
        if found is None or _SECRET.search(found[1]):
            others.append(f"{number}: {line.strip()[:80]}" if found is None else f"{number}: --{found[1]}")
            continue
        key = found[1].replace("-", "_").lower()
        value = _value(found[2])
        unit = unit_in_name(key)[1] if isinstance(value, float) else ""
        settings.append(Setting(name=key, value=value, unit=unit, place=Place(name, number)))
    return Observed(
        settings=settings,
        understood=[
            Understood(source=name, format=_NAME, understood=len(settings), total=total, what="options",
                       examples=others[:3])
        ],
    )  # fmt: skip


def _value(text: str) -> float | str:
    plain = text.strip().strip("\"'")
    try:
        return float(plain)
    except ValueError:
        return plain


OPTION_FILE: Final = Format(name=_NAME, matches=_matches, read=_read)
