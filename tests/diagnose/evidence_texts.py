"""Small evidence in the forms that people paste, with numbers that can be checked by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tailrace.app.diagnose import diagnose_sources
from tailrace.model.finding import Diagnosis, Finding


def asked(folder: Path, **files: str) -> Diagnosis:
    """The diagnosis of files with these texts; `_` in a name is a point: `before_prom` is `before.prom`."""
    names = []
    for name, text in files.items():
        path = folder / name.replace("_", ".")
        path.write_text(text)
        names.append(str(path))
    return diagnose_sources(names)


def found(folder: Path, code: str, **files: str) -> Finding | None:
    """The finding of this code, whatever its place."""
    return next((item for item in asked(folder, **files).findings if item.code == code), None)


def codes(folder: Path, **files: str) -> list[str]:
    """The codes of all findings, the surest first."""
    return [item.code for item in asked(folder, **files).findings]


def unshown(finding: Finding) -> list[str]:
    """The numbers of its statement that stand in none of its evidence, nor in its relation."""
    told = " ".join([finding.relation, *(item.text for item in finding.evidence)]).replace(",", "")
    numbers = re.findall(r"(?<![\w.])\d+(?:\.\d+)?", finding.statement.replace(",", ""))
    return [one for one in numbers if not re.search(rf"(?<![\d.]){re.escape(one)}(?!\d)", told)]


def said(finding: Finding) -> str:
    """All that it prints."""
    parts = [finding.statement, finding.relation, finding.advice, *(item.text for item in finding.evidence)]
    return " ".join([*parts, *finding.missing, *finding.disproof_checked, *finding.rivals])


def facts(**context: object) -> str:
    """A form."""
    return json.dumps({"facts": 1, "context": context})


def table(heading: str, rows: list[tuple[object, ...]]) -> str:
    """CSV."""
    return "\n".join([heading, *(",".join("" if cell is None else str(cell) for cell in row) for row in rows)]) + "\n"
