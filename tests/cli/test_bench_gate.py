from xml.etree import ElementTree as ET

import pytest

from tailrace.analyze.bench_summary import summarise
from tailrace.cli.bench_gate import check_fail_on, exit_code, objective_words, write_junit
from tailrace.model.errors import InputError
from tailrace.model.measurement import ClientHealth
from tailrace.model.outcome import Reason
from tailrace.model.thresholds import MS, Objectives
from tests.analyze.tables import request, table


def summary(*, n=600, slow=0, failed=0, late_ms=0.0, bound_ms=500, lane="", client=None):
    records = [
        request(
            i,
            at_ms=i * 10,
            prefill_ms=900 if i < slow else 100,
            gaps_ms=(10, 10),
            reason=Reason.STREAM_CUT if slow <= i < slow + failed else Reason.NONE,
            vantage="client",
            intended_to_sent_ns=round(late_ms * MS),
        )
        for i in range(n)
    ]
    return summarise(
        table(records), objectives=Objectives(bounds={f"{lane}ttft": {0.99: bound_ms * MS}}), client=client
    )


def test_an_objective_is_met_missed_or_not_decided():
    assert exit_code("objectives", [summary(slow=6)]) == 0
    assert exit_code("objectives", [summary(slow=7)]) == 1
    assert exit_code("objectives", [summary(n=100)]) == 3, "100 requests do not support a p99"
    assert exit_code("objectives", [summary(n=100, slow=5)]) == 1, "but they can miss it"
    assert exit_code("objectives", [summary(slow=7), summary()]) == 1
    assert exit_code("errors", [summary(slow=7)]) == 0
    assert exit_code(None, [summary(slow=7, failed=3)]) == 0


def test_a_failure_keeps_no_objective():
    found = summary(slow=3, failed=4)
    (result,) = found.objectives.values()
    assert (result.n, result.share, result.met) == (600, pytest.approx(593 / 600), False)
    assert exit_code("errors", [found]) == 1


def test_an_objective_counts_from_the_intended_time():
    assert exit_code("objectives", [summary(late_ms=300)]) == 0
    late = summary(late_ms=450)
    assert exit_code("objectives", [late]) == 1
    assert late.goodput_per_s == 0.0


def test_a_class_that_nobody_sent_decides_nothing():
    found = summary(lane="document/")
    assert [result.n for result in found.objectives.values()] == [0]
    assert exit_code("objectives", [found]) == 3


def test_the_words_of_an_objective():
    (item,) = summary(slow=60).objectives.items()
    assert objective_words(*item).startswith("ttft p99 ≤ 500 ms: MISSED, 90.0% kept it (95 %: 87.")


def test_junit_of_a_run(tmp_path):
    path = tmp_path / "junit.xml"
    write_junit(str(path), summary(slow=7, failed=2, client=ClientHealth(limited=True, why="late")))
    cases = {case.get("name"): [child.tag for child in case] for case in ET.parse(path).getroot()[0]}
    assert cases == {
        "client": ["error"],
        "every request completed": ["failure"],
        "ttft p99 ≤ 500 ms": ["failure", "system-out"],
    }
    with pytest.raises(InputError, match="cannot be written"):
        write_junit(str(tmp_path / "none" / "x.xml"), summary())


def test_what_cannot_be_failed_on_is_refused():
    with pytest.raises(InputError, match="nothing to fail on"):
        check_fail_on("slow")
    check_fail_on("objectives")
