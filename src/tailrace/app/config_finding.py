"""One thing to know of a gateway's configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tailrace.gateway.plain_yaml import YamlLines
from tailrace.model.check import CheckFinding, Weight
from tailrace.model.finding import Evidence


def config_finding(
    code: str,
    weight: Weight,
    name: str,
    subject: str,
    statement: str,
    *,
    advice: str = "",
    effect: str = "",
    price: str = "",
) -> CheckFinding:
    """`name`: the file; `subject`: the path of the key in it, as errors spell it (`lanes[0].running`)."""
    return CheckFinding(
        code=code,
        weight=weight,
        about=name,
        subject=subject,
        statement=statement,
        evidence=[Evidence(subject, name, subject)],
        advice=advice,
        effect=effect,
        price=price,
        verify=f"tailrace check {name}" if advice else "",
    )


def with_lines(findings: Iterable[CheckFinding], lines: YamlLines | None) -> Iterator[CheckFinding]:
    """Each finding with the line of its subject, where the file has it."""
    for finding in findings:
        line = None if lines is None else lines.at(finding.subject)
        yield finding if line is None else msgspec.structs.replace(finding, line=line)
