from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from tailrace.export.junit import Case, junit


def test_each_outcome_has_its_element_and_is_counted():
    root = ET.fromstring(
        junit(
            "compare",
            [
                Case("fine", text="5 to 4 ms"),
                Case("worse", failure="4 to 9 ms"),
                Case("limited", error="client limited"),
                Case("few", skipped="n = 20"),
            ],
            seconds=1.5,
        )
    )
    suite = root[0]
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped", "time")} == {
        "tests": "4", "failures": "1", "errors": "1", "skipped": "1", "time": "1.500",
    }  # fmt: skip
    assert [[child.tag for child in case] for case in suite] == [["system-out"], ["failure"], ["error"], ["skipped"]]
    assert suite[1][0].get("message") == "4 to 9 ms"
    assert suite[0].get("classname") == "tailrace.compare"


@given(st.text(), st.text(min_size=1))
def test_whatever_a_server_said_is_well_formed(name, why):
    case = ET.fromstring(junit(name, [Case(name, text=why, failure=why)]))[0][0]
    assert len(case) == 2
    # Attribute values are normalised by XML itself: line ends and tabs come back as blanks or as they were.
    if why.isascii() and why.isprintable():
        assert case[0].get("message") == why
