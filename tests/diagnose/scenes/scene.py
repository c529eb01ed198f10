"""A scene: the parts of a body of evidence, and what becomes of a finding when one of them is another or is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from tailrace.app.diagnose import diagnose_sources
from tailrace.diagnose.causes import CAUSES
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Finding
from tests.diagnose.simulated import evidence

Part = str | Observed | Callable[[], object] | None
"""The text of a file; observations; or what makes records, a machine's readings, scrapes. `None`: the part is gone."""


class Scene(NamedTuple):
    """Parts by name: a file's name and its text; or `records`, `before`, `hardware`, `states`, `objectives`."""

    code: str
    level: str
    """The least that its evidence deserves."""
    parts: Mapping[str, Part]
    near: Mapping[str, Part]
    """Instead of the parts with these names: nothing of the kind is to be found."""
    drop: Mapping[str, Part]
    """Instead of the parts with these names, with an input less: `None`, or the text without a column."""
    missing: str = ""
    """A regular expression for what is said to be missing; empty where the cause falls silent without its input."""


class Answer(NamedTuple):
    """What a cause says of evidence, and why it could not run, if it could not."""

    finding: Finding | None
    why_not: str = ""


def asked(scene: Scene, folder: Path, instead: Mapping[str, Part] | None = None) -> Answer:
    """What the cause of the scene says of its parts, with some of them replaced."""
    parts = {name: part for name, part in {**scene.parts, **(instead or {})}.items() if part is not None}
    if all(isinstance(part, str) for part in parts.values()):
        return _of_files(scene.code, folder, {name: str(part) for name, part in parts.items()})
    cause = cause_of(scene.code)
    seen = [part for part in parts.values() if isinstance(part, Observed)]
    if seen:
        return Answer(cause.observe(Observed.joined(seen)))
    made = {name: part() for name, part in parts.items() if callable(part)}
    body = evidence(made.pop("records"), **made)
    why_not = cause.cannot_run(body)
    return Answer(None if why_not else cause.judge(body), why_not)


def _of_files(code: str, folder: Path, files: Mapping[str, str]) -> Answer:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    if not files:
        return Answer(None)
    result = diagnose_sources([str(folder / name) for name in files])
    return Answer(next((item for item in (*result.findings, *result.validity) if item.code == code), None))


def cause_of(code: str):
    """The object of the catalogue."""
    return next(cause for cause in CAUSES if cause.code == code)


def without(table: str, *columns: str) -> str:
    """CSV or a Markdown table without these columns, by their headings."""
    lines = table.strip().splitlines()
    mark = "|" if lines[0].startswith("|") else ","
    rows = [[cell.strip() for cell in line.strip("|").split(mark)] for line in lines]
    keep = [place for place, heading in enumerate(rows[0]) if heading not in columns]
    assert len(keep) == len(rows[0]) - len(columns), (columns, rows[0])
    out = [mark.join(row[place] for place in keep) for row in rows]
    return "\n".join(f"|{line}|" if mark == "|" else line for line in out) + "\n"


def each(records, **changes):
    """The same records with these fields changed."""
    return [msgspec.structs.replace(record, **changes) for record in records]
