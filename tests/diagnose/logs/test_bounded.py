"""What is kept of logs that are too long to keep, and that what is thinned is said."""

from __future__ import annotations

import tracemalloc

import numpy as np

from tailrace.diagnose.observed import Clock, Place
from tailrace.diagnose.readers.logs import samples as samples_module
from tailrace.diagnose.readers.logs.accesses import Access, Accesses
from tailrace.diagnose.readers.logs.happenings import FIRST, LAST, Happenings
from tailrace.diagnose.readers.logs.log import read_log_text
from tailrace.diagnose.readers.logs.request_table import RequestTable
from tailrace.diagnose.readers.logs.samples import MOST_GROUPS, Groups, Samples
from tests.diagnose.logs.lines import v1

NAMES = ("running", "waiting", "output_tok_s", "kv_usage")


def filled(n, limit=2000, trouble=()):
    out = Samples(NAMES, limit=limit)
    for index in range(n):
        sad = index in trouble
        idle = 300 <= index % 1000 < 900
        row = (0.0, 0.0, 0.0, 0.1) if idle and not sad else (8.0, 0.0, 240.0, 0.4)
        out.add((10.0 * index, index + 1, *((7.0, 3.0, 0.5, 0.4) if sad else row)))
    return out


def test_a_short_log_is_kept_whole():
    samples = filled(1500)
    assert (samples.kept, samples.total) == (1500, 1500)


def test_a_long_one_keeps_its_trouble():
    trouble = {50_004, 50_005, 50_006, 120_000, 120_001}
    samples = filled(200_000, trouble=trouble)
    assert samples.kept <= 2000 + 20_000
    assert samples.total == 200_000
    rows = samples.rows()
    assert trouble <= {int(line) - 1 for line in rows[:, 1]}
    assert (np.diff(rows[:, 0]) > 0).all()


def test_where_all_is_trouble_it_is_bounded_as_well():
    samples = Samples(NAMES, limit=1000)
    for index in range(150_000):
        samples.add((10.0 * index, index + 1, 64.0, 30.0, 900.0, 0.99))
    assert samples.kept <= 1000 + 20_000
    series = samples.series({}, Place("a"), Clock.LOCAL)
    assert {one.name for one in series} == set(NAMES)


def test_a_log_of_many_pods_takes_the_memory_of_ten():
    def peak(pods):
        tracemalloc.start()
        out = Groups(NAMES)
        for index in range(60_000):
            out.add((f"pod-{index % pods}", "0"), (float(index), index, 8.0, 0.0, 240.0, 0.4))
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert sum(samples.kept for samples in out.of.values()) == 60_000
        return used

    # Rows that waited as tuples in each of a hundred pods took five times the memory of their arrays.
    assert peak(100) < 2.0 * peak(1)


def test_all_engines_share_the_rows_that_are_kept(monkeypatch):
    monkeypatch.setattr(samples_module, "TOGETHER", 50_000)
    out = Groups(NAMES)
    for index in range(300_000):
        out.add((f"pod-{index % 50}", "0"), (float(index), index, 8.0, 0.0, 240.0, 0.4))
    assert sum(samples.kept for samples in out.of.values()) <= 2 * 50_000
    assert len(out.said("load", "engine")) == 50


def test_engines_beyond_a_thousand_are_counted():
    out = Groups(NAMES)
    for index in range(MOST_GROUPS + 7):
        out.add(("", str(index)), (0.0, 1, 8.0, 0.0, 240.0, 0.4))
    assert len(out.of) == MOST_GROUPS
    assert out.said("load", "engine") == ["7 load lines of further engines were left out: 1,000 are looked at"]


def test_thinning_is_said():
    text = "\n".join(v1(i % 3000, running=1 + i % 3) for i in range(130_000))
    found = read_log_text(text, "vllm.log")
    (account,) = found.understood
    assert account.understood == account.total == 130_000
    assert "of 130,000 load lines of engine 0" in account.said[0]


def test_sums_of_access_lines_stay():
    table = Accesses("a", limit=1000)
    for index in range(30_000):
        bad = index % 100 == 0
        table.add(
            Access(line=index + 1, at=float(index), e2e=100.0 + index % 50, status=504.0 if bad else 200.0, path="/v1")
        )
    rows = table.table()
    assert rows is not None
    assert len(rows) <= 1001
    count, status = rows.numbers("count"), rows.numbers("status")
    assert count.sum() == 30_000
    assert count[status == 504].sum() == 300
    assert table.thinned > 0


def test_paths_with_ids_are_one_path_and_there_are_not_too_many():
    table = Accesses("a")
    for index in range(5000):
        table.add(Access(line=1, status=200.0, method="GET", path=f"/v1/jobs/{index:08x}-aaaa?x=1"))
        table.add(Access(line=1, status=200.0, method="GET", path=f"/p{index}x"))
    rows = table.table()
    assert rows is not None
    assert rows.numbers("count").sum() == 10_000
    assert len(rows) <= 2002
    assert "/v1/jobs/…" in rows.texts("path")
    assert "(others)" in rows.texts("path")


def test_of_events_the_first_and_the_last_are_kept():
    events = Happenings("a")
    for index in range(10_000):
        events.add("jit", index + 1, None, "x" * 1000)
    kept = events.events()
    assert len(kept) == FIRST + LAST
    assert (kept[0].place.line, kept[-1].place.line) == (1, 10_000)
    assert len(kept[0].text) == 300
    assert events.counts["jit"] == 10_000
    assert "10,000 lines" in events.said()[0]


def test_requests_of_an_engine_are_thinned_evenly():
    table = RequestTable("a", limit=100)
    for index in range(1000):
        table.add(index + 1, {"e2e": float(index)})
    rows = table.table()
    assert rows is not None
    assert len(rows) <= 101
    assert abs(float(np.median(rows.numbers("e2e"))) - 500) < 60
    assert "of 1,000 requests" in table.said()[0]
