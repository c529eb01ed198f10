"""JUnit XML: results as test cases, which every CI system shows beside the tests.

The dialect is that of the Ant task (`testsuites/testsuite/testcase` with `failure`, `error`, `skipped`, `system-out`),
as Jenkins, GitLab and the reporters for GitHub Actions read it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from xml.etree import ElementTree as ET

__all__ = ["Case", "junit"]

_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, escaped or not (the Char production); errors of servers may contain it."""


class Case(NamedTuple):
    """One thing that was judged."""

    name: str
    text: str = ""
    """What was found, in a sentence."""
    failure: str = ""
    """It was judged, and is not as it should be."""
    error: str = ""
    """It could not be judged: the client was the limit, a run was cut."""
    skipped: str = ""
    """It is not judged: too few requests, not asked for."""


def junit(suite: str, cases: Sequence[Case], *, seconds: float = 0.0) -> bytes:
    """One test suite as XML (UTF-8, with declaration)."""
    counts = {
        "tests": len(cases),
        "failures": sum(bool(case.failure) for case in cases),
        "errors": sum(bool(case.error) for case in cases),
        "skipped": sum(bool(case.skipped) for case in cases),
    }
    numbers = {name: str(count) for name, count in counts.items()}
    root = ET.Element("testsuites", {"name": "tailrace", **numbers})
    parent = ET.SubElement(root, "testsuite", {"name": _clean(suite), **numbers, "time": f"{seconds:.3f}"})
    for case in cases:
        node = ET.SubElement(
            parent, "testcase", {"classname": f"tailrace.{_clean(suite)}", "name": _clean(case.name), "time": "0"}
        )
        for tag in ("failure", "error", "skipped"):
            why = getattr(case, tag)
            if why:
                ET.SubElement(node, tag, {"message": _clean(why)})
        if case.text:
            ET.SubElement(node, "system-out").text = _clean(case.text)
    ET.indent(root)
    whole: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return whole + b"\n"


def _clean(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
