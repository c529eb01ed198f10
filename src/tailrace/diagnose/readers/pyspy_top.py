"""A screen of `py-spy top`, pasted: how full the interpreter is, and which functions take its time.

Each function is an event `profile`: its share of the samples (own and total), and in `class` what it is of, as for a
stack dump. `gil_share` and `active_share` are the interpreter's and the threads' shares of one core.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tailrace.diagnose.observed import Event, Observed, Place, Setting, Understood
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.pyspy import class_of

__all__ = ["PYSPY_TOP"]

_NAME: Final = "py-spy top"
_SAMPLED: Final = re.compile(r"^\s*Collecting samples from '(.*)'")
_LOAD: Final = re.compile(r"\bGIL:\s*(\d+(?:\.\d+)?)\s*%,\s*Active:\s*(\d+(?:\.\d+)?)\s*%")
_ROW: Final = re.compile(
    r"^\s*(\d+(?:\.\d+)?)%\s+(\d+(?:\.\d+)?)%\s+([\d.]+)s\s+([\d.]+)s\s+(\S.*?)\s+\(([^()]+?)(?::\d+)?\)\s*$"
)
_FURNITURE: Final = re.compile(r"^\s*(?:Total Samples|%Own|OwnTime|Press |Python v|$)")
MOST: Final = 200


def read_pyspy_top(path: Path, name: str) -> Observed:
    """The last screen of a file: py-spy draws it over and over."""
    out = Observed()
    title = ""
    total = understood = 0
    examples: list[str] = []
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, raw in enumerate(file, start=1):
            text = raw.rstrip("\n")
            if not text.strip():
                continue
            total += 1
            sampled, load, row = _SAMPLED.match(text), _LOAD.search(text), _ROW.match(text)
            if sampled is not None:
                title = sampled[1][:200]
                out.events.clear()
            elif load is not None:
                place = Place(name, number)
                out.settings = [
                    Setting(name="gil_share", value=float(load[1]) / 100.0, unit="share", place=place),
                    Setting(name="active_share", value=float(load[2]) / 100.0, unit="share", place=place),
                ]
            elif row is not None and len(out.events) < MOST:
                frame = f"{row[5]} ({row[6]})"
                out.events.append(
                    Event(
                        kind="profile",
                        text=frame[:200],
                        attributes={
                            "own": float(row[1]) / 100.0,
                            "total": float(row[2]) / 100.0,
                            "class": class_of([frame])[0],
                            "title": title,
                        },
                        place=Place(name, number),
                    )
                )
            elif _FURNITURE.match(text) is None:
                if len(examples) < 3:
                    examples.append(f"{number}: {text.strip()[:80]}")
                continue
            understood += 1
    out.understood = [Understood(source=name, format=_NAME, understood=understood, total=total, examples=examples)]
    return out


def _matches(head: str, name: str) -> bool:
    _ = name
    if "GIL:" not in head and "Collecting samples" not in head and "%Own" not in head:
        return False
    lines = head.splitlines()[:400]
    screen = any(_LOAD.search(line) or _SAMPLED.match(line) for line in lines) or "%Own" in head
    return screen and any(_ROW.match(line) for line in lines)


PYSPY_TOP: Final = Format(name=_NAME, matches=_matches, read=read_pyspy_top)
"""A screen of `py-spy top`."""
