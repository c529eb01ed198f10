"""`tailrace bench`: the run itself, what is printed of it, and its exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.probe.spec import BenchSpec

_EXIT_LIMITED: Final = 3
_EXIT_INTERRUPTED: Final = 130


class Results(NamedTuple):
    """The options under `Results`, as they were typed."""

    objective: list[str]
    out: str | None
    fail_on: str | None
    as_json: bool

    def check(self) -> None:
        """Raise `InputError` for something that cannot be failed on."""
        from tailrace.model.errors import InputError

        if self.fail_on not in (None, "errors"):
            raise InputError(
                f"{self.fail_on!r} is nothing to fail on", place="--fail-on", remedy="Write --fail-on errors"
            )

    def path(self) -> Path:
        """Where the run file goes. Raises `InputError` for a directory."""
        import time
        from pathlib import Path

        from tailrace.model.errors import InputError

        path = Path(self.out or time.strftime("bench-%Y%m%d-%H%M%S.run"))
        if path.is_dir():
            raise InputError("is a directory", place=str(path), remedy="Give --out the name of a file")
        return path


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C before or after the run itself, which has its own way to end: no traceback, the same exit code."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(_EXIT_INTERRUPTED) from None


def run(spec: BenchSpec, results: Results) -> None:
    """Run, print, and leave with the exit code that the end calls for."""
    import sys

    from tailrace.app.bench import bench
    from tailrace.cli.bench_print import LiveProgress, announcement, print_summary
    from tailrace.probe.run import Interrupted

    path = results.path()
    with LiveProgress(spec.url, announcement="" if results.as_json else announcement(spec)) as progress:
        try:
            result = bench(spec, out=path, on_progress=progress.show)
        except Interrupted as error:
            sys.stderr.write(f"tailrace bench: {error}\n")
            raise typer.Exit(_EXIT_INTERRUPTED) from None
    summary = result.summary
    if results.as_json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(summary).decode() + "\n")
    else:
        print_summary(summary, spec, path, interrupted=result.interrupted)
    if result.interrupted:
        raise typer.Exit(_EXIT_INTERRUPTED)
    if summary.client.limited:
        raise typer.Exit(_EXIT_LIMITED)
    if results.fail_on == "errors" and summary.errors:
        raise typer.Exit(1)
