"""What `tailrace bench` prints: the headline first, within a hundred columns, and what to do next."""

import io

import msgspec
import pytest
from rich.table import Table

from tailrace.analyze.bench_summary import summarise_run
from tailrace.cli.bench_print import LiveProgress, print_summary
from tailrace.cli.console import Console
from tailrace.cli.trim import parse_trim
from tailrace.model.errors import InputError
from tailrace.probe.progress import Progress
from tailrace.probe.spec import BenchSpec
from tailrace.store.run_file import RunWriter, read_run
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.mix import parse_mix
from tailrace.workload.plan import Workload
from tests.app.report_runs import EVIL, a_run

SPEC = BenchSpec(
    url="http://localhost:8000",
    workload=Workload(arrivals=Arrivals(kind=ArrivalKind.POISSON, rate=40.0), mix=parse_mix("short:1")),
    requests=600,
)


def printed(capsys, path, run, trim=None):
    with RunWriter(path, run.header) as file:
        file.write_all(run.records)
        file.close(run.trailer)
    print_summary(summarise_run(read_run(path), trim=parse_trim(trim)), SPEC, path, interrupted=False)
    return capsys.readouterr().out


def test_the_headline_stands_first_and_everything_fits(capsys, tmp_path):
    text = printed(capsys, tmp_path / "a.run", a_run())
    lines = text.splitlines()
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 100
    assert lines[1].startswith("TTFT p50 ")
    assert ", p99 " in lines[1]
    assert "(95 %: " in lines[1]
    assert "600 requests in" in text
    assert "588 completed, 12 failed (2.0%)" in text
    assert "counting the 12 that failed as slower than everything: TTFT p50" in text
    assert "p99 ∞" in text
    order = [
        "From the intended time",
        "From the send",
        "By class",
        "Not completed",
        "Client healthy",
        "Run file",
        "Next:",
    ]
    assert [text.index(one) for one in order] == sorted(text.index(one) for one in order)
    assert "met their objectives: chat " in text
    assert f"tailrace report {tmp_path / 'a.run'} --open" in text


def test_a_client_that_was_the_limit_is_said_first_and_gets_other_advice(capsys, tmp_path):
    text = printed(capsys, tmp_path / "a.run", a_run(limited=True))
    assert text.startswith("Client-limited: these numbers are not the server's.")
    assert "Next: lower the load" in text
    assert "tailrace compare" not in text


def test_a_closed_loop_counts_from_the_send(capsys, tmp_path):
    text = printed(capsys, tmp_path / "a.run", a_run(open_loop=False))
    assert "From the intended time" not in text
    assert "counting the 12 that failed" in text


def test_markup_of_others_is_text(capsys, tmp_path):
    text = printed(capsys, tmp_path / "a.run", a_run(evil=True))
    assert EVIL in " ".join(text.split())


def test_the_trimmed_part_is_named(capsys, tmp_path):
    text = " ".join(printed(capsys, tmp_path / "a.run", a_run(), trim="2s,0").split())
    assert "Steady part only: requests due between 2.0 s and" in text


@pytest.mark.parametrize(
    ("text", "up", "down"), [("10s,5s", 10, 5), ("10s", 10, 10), ("0,5", 0, 5), ("500ms,0", 0.5, 0)]
)
def test_trim_as_it_is_typed(text, up, down):
    trim = parse_trim(text)
    assert (trim.up_ns / 1e9, trim.down_ns / 1e9, trim.steady) == (up, down, False)


def test_trim_by_the_load_and_none_at_all():
    assert parse_trim("steady").steady
    assert parse_trim(None) is None
    for bad in ("soon", "10s,later", ""):
        with pytest.raises(InputError, match="--trim"):
            parse_trim(bad)


def test_what_no_answer_had_is_not_said_to_be_met(capsys, tmp_path):
    run = a_run()
    whole = [msgspec.structs.replace(one, ttft_ns=None, tpot_ns=None, chunk_gap_max_ns=None) for one in run.records]
    text = printed(capsys, tmp_path / "a.run", msgspec.structs.replace(run, records=whole))
    assert "not measured, so not judged: ttft, tpot" in " ".join(text.split())


def test_so_few_requests_have_a_longest_and_no_unit_that_hangs(capsys, tmp_path):
    run = a_run()
    nine = msgspec.structs.replace(run, records=run.records[:9], trailer=msgspec.structs.replace(run.trailer, n=9))
    text = printed(capsys, tmp_path / "a.run", nine)
    assert " ms (n = 8: too few for a percentile)" in " ".join(text.split())
    assert ") ms" not in text
    assert "?: too few for the interval's upper end" in " ".join(text.split())


@pytest.mark.parametrize(("done", "shown"), [(499, "TTFT p50 20 ms"), (500, "TTFT p50 20 p99 90 ms")])
def test_the_line_of_a_running_load_has_a_p99_where_n_allows_one(done, shown):
    progress = Progress(phase="measuring", done=done, ttft_p50_ms=20.0, ttft_p99_ms=90.0)
    assert LiveProgress("http://localhost:8000")._line(progress).endswith(shown)


def test_what_a_server_says_reaches_no_terminal_as_a_command():
    console = Console(file=io.StringIO(), force_terminal=False, width=80)
    table = Table(box=None)
    table.add_column("\x1b[31mname")
    table.add_row("\x9b2J")
    table.add_row("m[/x] [red]")
    console.print("model \x1b]0;title\x07", markup=False)
    console.print(table)
    said = console.file.getvalue()
    assert "model \\x1b]0;title\\x07" in said
    assert "\\x1b[31mname" in said
    assert "\\x9b2J" in said
    assert "m[/x] [red]" in said
