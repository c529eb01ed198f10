"""`tailrace bench`: the run itself, what is printed of it, and its exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from tailrace.cli.bench_gate import check_fail_on, exit_code, write_junit
from tailrace.cli.trim import parse_trim

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.analyze.as_tool import ToolView
    from tailrace.model.measurement import BenchSummary
    from tailrace.probe.spec import BenchSpec

_EXIT_LIMITED: Final = 3
_EXIT_INTERRUPTED: Final = 130


class Results(NamedTuple):
    """The options under `Results`, as they were typed."""

    objective: list[str]
    out: str | None
    fail_on: str | None
    as_json: bool
    as_tool: str | None = None
    trim: str | None = None
    junit: str | None = None

    def check(self) -> None:
        """Raise `InputError` for something that cannot be failed on, or for a tool that is not known."""
        check_fail_on(self.fail_on)
        if self.as_tool is not None:
            from tailrace.analyze.as_tool import check_tool

            check_tool(self.as_tool)

    def path(self) -> Path:
        """Where the run file goes. Raises `InputError` for a directory."""
        import time
        from pathlib import Path

        from tailrace.model.errors import InputError

        path = Path(self.out or time.strftime("bench-%Y%m%d-%H%M%S.run"))
        if path.is_dir():
            raise InputError("is a directory", place=str(path), remedy="Give --out the name of a file")
        return path


def _interrupted() -> typer.Exit:
    """The end of an interrupted run. While Python itself goes down, another Ctrl-C would kill it, with another code."""
    import signal

    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    return typer.Exit(_EXIT_INTERRUPTED)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C before or after the run itself, which has its own way to end: no traceback, the same exit code."""
    try:
        yield
    except KeyboardInterrupt:
        raise _interrupted() from None


def run(spec: BenchSpec, results: Results, *, processes: int = 1) -> None:
    """Run, print, and leave with the exit code that the end calls for."""
    import sys

    from tailrace.app.bench import bench
    from tailrace.cli.bench_print import LiveProgress, announcement, print_summary
    from tailrace.probe.run import Interrupted

    path, trim = results.path(), parse_trim(results.trim)
    with LiveProgress(spec.url, announcement="" if results.as_json else announcement(spec)) as progress:
        try:
            result = bench(spec, out=path, on_progress=progress.show, processes=processes)
        except Interrupted as error:
            sys.stderr.write(f"tailrace bench: {error}\n")
            raise _interrupted() from None
    summary = result.summary
    if trim is not None:
        from tailrace.analyze.bench_summary import summarise_run
        from tailrace.store.run_file import read_run

        summary = summarise_run(read_run(path), trim=trim)
    if results.as_json:
        import msgspec

        shown = summary if results.as_tool is None else _with_view(summary, results.as_tool, path)
        sys.stdout.write(msgspec.json.encode(shown).decode() + "\n")
    else:
        print_summary(summary, spec, path, interrupted=result.interrupted)
        if results.as_tool is not None:
            from tailrace.cli.as_tool_print import print_view

            print_view(_view(results.as_tool, path))
    if results.junit is not None:
        write_junit(results.junit, summary)
    if result.interrupted:
        raise _interrupted()
    if summary.client.limited:
        raise typer.Exit(_EXIT_LIMITED)
    if code := exit_code(results.fail_on, [summary]):
        raise typer.Exit(code)


def _view(tool: str, path: Path) -> ToolView:
    from tailrace.analyze.as_tool import as_tool
    from tailrace.store.run_file import read_run

    return as_tool(tool, read_run(path))


def _with_view(summary: BenchSummary, tool: str, path: Path) -> dict[str, Any]:
    """The summary's JSON object with one more key, `as_tool`."""
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(summary)
    return plain | {"as_tool": msgspec.to_builtins(_view(tool, path))}
