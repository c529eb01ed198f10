"""`tailrace compare`: did the change help?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.command_app import CommandApp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.model.measurement import Comparison, ComparisonSet, EngineView
    from tailrace.model.rules import Rule
    from tailrace.model.thresholds import Objectives

app = CommandApp()

_EXIT_ANSWER = 1
_EXIT_INCONCLUSIVE = 3
_ANSWERS = ("regressed", "inconclusive", "rules")
_VIEWS = ("verdict", "engines")
_RUNS = (
    "Run files, results of other load tools, records as JSON lines, data directories or admin URLs: A B (C D). One arm "
    "may be several runs: a1.run,a2.run or 'a-*.run'; NAME=RUN names it."
)


@app.command()
def compare(
    runs: Annotated[list[str] | None, typer.Argument(help=_RUNS, show_default=False)] = None,
    a: Annotated[
        str | None, typer.Option("--a", help="Arm A, where it is easier to write: a1.run,a2.run,a3.run")
    ] = None,
    b: Annotated[str | None, typer.Option("--b", help="Arm B, likewise.")] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The arm that the others are compared with. Default: the first.")
    ] = None,
    rules: Annotated[
        str | None, typer.Option(help="A YAML file of thresholds: ttft_ms.p99: {max_increase: 10%}")
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            help="regressed: exit 1 when it is; rules: exit 1 when one is broken; inconclusive: exit 3 when it is. "
            "Repeatable, or with commas."
        ),
    ] = None,
    view: Annotated[
        str, typer.Option(help="verdict, or engines: stages, throughput, tails, resources and failures side by side.")
    ] = "verdict",
    objective: Annotated[
        list[str] | None,
        typer.Option(help="For the goodput: ttft_p99=500ms. Repeatable. Default: those that A was measured with."),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="text, markdown (for a pull request) or json.")] = "text",
    junit: Annotated[str, typer.Option(help="Also write JUnit test cases to this file, for CI.")] = "",
    partial: Annotated[bool, typer.Option("--partial", help="Use what a cut run file still holds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Did the change help? improved, regressed, no difference or inconclusive, with n, intervals and trade-offs.

    Example: tailrace compare before.run after.run --fail-on regressed
    """
    from tailrace.cli.compare_arms import arms_of, named
    from tailrace.cli.compare_render import renderer
    from tailrace.cli.compare_rules import read_rules
    from tailrace.cli.objectives import parse_objectives
    from tailrace.model.errors import InputError

    answers = _answers(fail_on or [], rules)
    if view not in _VIEWS:
        raise InputError(f"there is no view {view!r}", place="--view", remedy=f"Use one of {', '.join(_VIEWS)}.")
    show = renderer("json" if as_json else form)
    arms = arms_of(runs or [], a, b)
    base = named(arms, baseline)
    thresholds = read_rules(rules) if rules is not None else []
    bounds = parse_objectives(objective or [])
    if view == "engines":
        sys.stdout.write(show(_engines(arms, bounds, partial)))
        return
    result = _compared(arms, base, bounds, thresholds, partial=partial)
    if junit:
        from tailrace.cli.compare_junit import write_junit

        write_junit(junit, result, fail_on_inconclusive="inconclusive" in answers)
    sys.stdout.write(show(result))
    _leave(result, answers)


def _answers(texts: Sequence[str], rules: str | None) -> list[str]:
    from tailrace.model.errors import InputError

    answers = [part.strip() for text in texts for part in text.replace("|", ",").split(",")]
    for answer in answers:
        if answer not in _ANSWERS:
            raise InputError(
                f"there is no answer {answer!r}", place="--fail-on", remedy=f"Use one of {', '.join(_ANSWERS)}."
            )
    if "rules" in answers and rules is None:
        raise InputError("there are no rules that could be broken", place="--fail-on", remedy="Give --rules FILE.")
    return answers


def _compared(
    arms: Sequence[object], base: str, objectives: Objectives | None, rules: Sequence[Rule], *, partial: bool
) -> Comparison | ComparisonSet:
    import msgspec

    from tailrace.analyze.compare_many import compare_many
    from tailrace.analyze.compare_summaries import compare_any
    from tailrace.analyze.ruled import apply_rules
    from tailrace.cli.compare_arms import Arm, read_arm, with_requests

    named_arms = [arm for arm in arms if isinstance(arm, Arm)]
    read = {arm.name: read_arm(arm, partial=partial) for arm in named_arms}
    if len(read) == 2:
        other = next(name for name in read if name != base)
        one = compare_any(
            read[base][0],
            read[other][0],
            objectives=objectives,
            dropped=(read[base][1], read[other][1]),
            names=(base, other),
        )
        return msgspec.structs.replace(one, rules=apply_rules(one, rules))
    many = compare_many(
        {arm.name: with_requests(arm, read[arm.name][0]) for arm in named_arms},
        baseline=base,
        objectives=objectives,
        dropped={name: dropped for name, (_, dropped) in read.items()},
    )
    ruled = {
        name: msgspec.structs.replace(one, rules=apply_rules(one, rules)) for name, one in many.comparisons.items()
    }
    return msgspec.structs.replace(many, comparisons=ruled)


def _engines(arms: Sequence[object], objectives: Objectives | None, partial: bool) -> EngineView:
    from tailrace.analyze.engine_view import engine_view
    from tailrace.cli.compare_arms import Arm, read_arm, with_requests

    read = {arm.name: with_requests(arm, read_arm(arm, partial=partial)[0]) for arm in arms if isinstance(arm, Arm)}
    return engine_view(read, objectives=objectives)


def _leave(result: Comparison | ComparisonSet, answers: Sequence[str]) -> None:
    """Exit with what `--fail-on` asked for: a limited client comes first, then what is broken, then what is unknown."""
    from tailrace.model.measurement import ComparisonSet

    ones = list(result.comparisons.values()) if isinstance(result, ComparisonSet) else [result]
    if any(reason.startswith("client_limited") for one in ones for reason in one.refused):
        raise typer.Exit(_EXIT_INCONCLUSIVE)
    rules = [rule for one in ones for rule in one.rules]
    if ("regressed" in answers and any(one.verdict == "regressed" for one in ones)) or (
        "rules" in answers and any(rule.passed is False for rule in rules)
    ):
        raise typer.Exit(_EXIT_ANSWER)
    undecided = any(one.verdict == "inconclusive" for one in ones) or any(rule.passed is None for rule in rules)
    if "inconclusive" in answers and undecided:
        raise typer.Exit(_EXIT_INCONCLUSIVE)
