"""`bench` as a gate: what `--fail-on` may name, the exit code that follows, and the same as JUnit test cases."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace.model.errors import InputError

if TYPE_CHECKING:
    from tailrace.model.measurement import BenchSummary, ObjectiveResult

__all__ = ["check_fail_on", "exit_code", "objective_words", "write_junit"]

_FAILED: Final = 1
_UNDECIDED: Final = 3
_NAMES: Final = ("errors", "objectives")


def check_fail_on(name: str | None) -> None:
    """Raise `InputError` for something that cannot be failed on."""
    if name is not None and name not in _NAMES:
        raise InputError(
            f"{name!r} is nothing to fail on",
            place="--fail-on",
            remedy="Write --fail-on errors or --fail-on objectives",
        )


def exit_code(fail_on: str | None, summaries: Iterable[BenchSummary]) -> int:
    """What `--fail-on` makes of the runs: 1 it happened, 3 an objective cannot be decided, 0 otherwise."""
    found = list(summaries)
    if fail_on == "errors":
        return _FAILED if any(one.errors for one in found) else 0
    if fail_on == "objectives":
        met = [result.met for one in found for result in one.objectives.values() if result.n]
        if False in met:
            return _FAILED
        return _UNDECIDED if None in met or not met else 0
    return 0


def objective_words(name: str, result: ObjectiveResult) -> str:
    """`ttft p99 ≤ 500 ms: MISSED, 97.1 % kept it (95 %: 95.9 to 98.0 %, n = 800)`."""
    verdict = {True: "met", False: "MISSED", None: "not decided"}[result.met]
    share = "" if result.share is None else f", {result.share:.1%} kept it"
    interval = "" if result.ci is None else f"95 %: {result.ci[0]:.1%} to {result.ci[1]:.1%}, "
    return f"{name}: {verdict}{share} ({interval}n = {result.n:,})"


def write_junit(path: str, summary: BenchSummary) -> None:
    """Write the run's test cases: the client, the answers, each objective. InputError where it cannot be written."""
    from tailrace.export.junit import Case, junit

    cases = [
        Case("client", error=f"client limited: {summary.client.why}" if summary.client.limited else ""),
        Case(
            "every request completed",
            failure=", ".join(f"{count} {reason}" for reason, count in summary.errors.items()),
        ),
    ]
    for name, result in summary.objectives.items():
        words = objective_words(name, result)
        if not result.n:
            cases.append(Case(name, skipped="no request has this metric"))
        elif result.met is None:
            cases.append(Case(name, error=words))
        else:
            cases.append(Case(name, words, failure="" if result.met else words))
    try:
        Path(path).write_bytes(junit("bench", cases, seconds=summary.duration_s or 0.0))
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror or error}", place=path, remedy="Give --junit another path."
        ) from None
