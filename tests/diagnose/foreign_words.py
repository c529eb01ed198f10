"""Foreign evidence for tests, as people write it: tables, forms, command lines, printed benchmarks."""

import json

from tailrace.app.diagnose import diagnose_sources
from tailrace.model.finding import Diagnosis, Finding


def table(header, *rows) -> str:
    """A Markdown table: `table("path | TTFT p50 (ms)", "direct | 20")`."""
    cells = [[cell.strip() for cell in line.split("|")] for line in (header, *rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(cells[0]), *lines[1:]]) + "\n"


def facts(arms=None, **context) -> str:
    """A form."""
    return json.dumps({"facts": 1, **({"arms": arms} if arms else {}), "context": context})


def asked(tmp_path, *texts) -> Diagnosis:
    """The diagnosis of these texts, each a file of its own."""
    paths = []
    for place, text in enumerate(texts):
        name = (
            "json"
            if text.startswith("{")
            else "md"
            if text.startswith("|")
            else "csv"
            if text.startswith("t_s")
            else "txt"
        )
        path = tmp_path / f"evidence{place}.{name}"
        path.write_text(text)
        paths.append(str(path))
    return diagnose_sources(paths)


def of(result: Diagnosis, code: str) -> Finding | None:
    """The finding with this code."""
    return next((item for item in result.findings if item.code == code), None)


def everything(finding: Finding) -> str:
    """All words of a finding."""
    parts = [
        finding.statement,
        finding.relation,
        finding.advice,
        finding.price,
        *finding.missing,
        *finding.disproof_checked,
    ]
    return " ".join([*parts, *(item.text for item in finding.evidence)])
