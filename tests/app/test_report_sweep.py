"""The report of a sweep: a curve a metric, every point with its failures and its interval, and what went wrong."""

from __future__ import annotations

import msgspec

from tailrace.analyze.bench_summary import summarise_run
from tailrace.app.report import report
from tailrace.app.report_sweep import sweep_sections
from tailrace.store.sweep import Sweep, SweepRun, write_sweep
from tests.app.report_runs import EVIL, a_run


def a_sweep(*, limited: bool = False, **more) -> Sweep:
    runs = []
    for place, rate in enumerate((1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)):
        summary = summarise_run(a_run(120 + 10 * place, limited=limited and rate == 64.0))
        runs.append(
            SweepRun(
                value=rate,
                run=f"{place:02}.run",
                summary=summary,
                saturated="the queue grew for as long as the load lasted" if rate == 64.0 else "",
            )
        )
    return Sweep(target="http://localhost:8000", model="llama-8b", asked=[one.value for one in runs], runs=runs, **more)


def markup(sweep: Sweep) -> str:
    return "".join(section.markup for section in sweep_sections(sweep))


def test_each_point_has_its_row_and_each_metric_its_curve():
    sections = sweep_sections(a_sweep())
    pictures = [picture for section in sections for picture in section.pictures]
    assert [picture.name for picture in pictures] == ["curve-ttft_ms", "curve-e2e_ms", "curve-tpot_ms"]
    for picture in pictures:
        # Of one line, too, the legend says which percentile it is.
        assert picture.figure().layout.showlegend
    text = markup(a_sweep())
    for words in ("time to first token", "time to the last byte", "time per token"):
        assert f"Throughput and {words}" in text
    assert text.count('<th scope="row">') == 7
    assert "the queue grew for as long as the load lasted" in text
    assert "The load generator kept up at every point" in text


def test_a_limited_point_and_an_early_end_are_said_first():
    text = markup(a_sweep(limited=True, stopped="Ctrl-C"))
    assert text.startswith('<div class="lost" role="alert">Client limited at 64')
    assert "The sweep ended early: Ctrl-C" in text


def test_a_search_tells_its_answer():
    found = {"value": 12.5, "low": 11.0, "high": 14.0, "confidence": 0.95, "objective": EVIL}
    text = markup(a_sweep(kind="search", found=found))
    assert "12.5 requests/s (11 to 14)" in text
    assert "<img" not in text
    assert "The search found no boundary" in markup(a_sweep(kind="search", found={"value": None}))


def test_the_command_takes_the_directory(tmp_path):
    write_sweep(tmp_path, a_sweep())
    made = report(str(tmp_path), out=tmp_path / "sweep.html")
    assert (made.points, made.summary) == (7, None)
    assert msgspec.json.decode(msgspec.json.encode(made))["points"] == 7
    assert "curve-ttft_ms" in (tmp_path / "sweep.html").read_text(encoding="utf-8")


def test_an_empty_sweep_has_a_page():
    assert "0 loads" in markup(Sweep(stopped="the first point failed"))
