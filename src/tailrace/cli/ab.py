"""`tailrace ab`: two arms measured in turn, and what the rounds agree on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.bench_load import MOST_SEED
from tailrace.cli.command_app import CommandApp
from tailrace.cli.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.app.ab import AbResult, AbStep

app = CommandApp()

_EXIT_ANSWER = 1
_EXIT_INCONCLUSIVE = 3
_EXIT_INTERRUPTED = 130
_ANSWERS = ("regressed", "inconclusive")
_OURS = ("--out", "--seed", "--json", "--fail-on")
"""Options of `bench` that belong to the A/B as a whole."""
_SHOWN = ("ttft_ms.p50", "ttft_ms.p95", "ttft_ms.p99", "chunk_gap_ms.p99", "tpot_ms.p50", "e2e_ms.p50", "e2e_ms.p99")
_RATES = ("requests_per_s", "tokens_per_s", "goodput_per_s")


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def ab(
    context: typer.Context,
    a: Annotated[str, typer.Option("--a", help="Address of the arm before the change.", show_default=False)] = "",
    b: Annotated[str, typer.Option("--b", help="Address of the arm after it.", show_default=False)] = "",
    url: Annotated[
        str, typer.Option("--url", help="One address for both, where --switch changes what stands behind it.")
    ] = "",
    switch: Annotated[
        str,
        typer.Option(help="Shell command that brings up an arm, before each run: {arm} is a or b.", show_default=False),
    ] = "",
    rounds: Annotated[int, typer.Option(help="Runs of each arm.", min=1)] = 6,
    settle: Annotated[str, typer.Option(help="Rest before each run.")] = "2s",
    ready_within: Annotated[str, typer.Option(help="Longest wait for an arm to come up.")] = "120s",
    switch_within: Annotated[str, typer.Option(help="Longest that --switch may take.")] = "300s",
    again: Annotated[int, typer.Option(help="Repeat a run that was client limited so often.", min=0)] = 2,
    seed: Annotated[int, typer.Option(help="Of the order and of the first round's load.", min=0, max=MOST_SEED)] = 0,
    out: Annotated[str | None, typer.Option(help="Folder (default ab-DATE-TIME); one that is begun goes on.")] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(help="regressed: exit 1 when it is; inconclusive: exit 3 when it is. Repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure two arms in turn, round by round, and judge them: the way to prove a change.

    Each round is one run of either arm with the same arrivals, in an order that is drawn; the rounds are the sample, so
    that a bad hour or a lucky start of one server is not taken for the change. All other options are those of `tailrace
    bench`, and each run is one. Ctrl-C judges what there is; the same command with --out goes on.

    Example: tailrace ab --a http://old:8000 --b http://new:8000 --rate 5 --duration 60

    Example: tailrace ab --url http://gpu:8000 --switch './restart.sh {arm}' --rate 5
    """
    import time
    from pathlib import Path

    from tailrace.app.ab import AbOptions, plan_runs, run_ab
    from tailrace.cli.durations import parse_span
    from tailrace.model.errors import InputError

    answers = [part for text in fail_on or [] for part in text.replace("|", ",").split(",")]
    for answer in answers:
        if answer not in _ANSWERS:
            raise InputError(
                f"there is no answer {answer!r}", place="--fail-on", remedy=f"Use one of {', '.join(_ANSWERS)}."
            )
    bench_options = _bench_options(context.args)
    options = AbOptions(
        urls=_addresses(a, b, url, switched=bool(switch)),
        rounds=rounds,
        folder=Path(out or time.strftime("ab-%Y%m%d-%H%M%S")),
        bench=bench_options,
        switch=switch,
        seed=seed,
        settle_s=0.0 if settle in ("0", "0s") else parse_span(settle, place="--settle") / 1e9,
        ready_within_s=parse_span(ready_within, place="--ready-within") / 1e9,
        switch_within_s=parse_span(switch_within, place="--switch-within") / 1e9,
        again=again,
    )
    order = " ".join("".join(one.arm.upper() for one in plan_runs(options) if one.round == i) for i in _upto(rounds))
    sys.stderr.write(f"{2 * rounds} runs into {options.folder}/, in the order {order}; every run loads its server\n")
    result = run_ab(options, _show)
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    else:
        _print(result)
    if result.interrupted:
        raise typer.Exit(_EXIT_INTERRUPTED)
    limited = result.rounds.n == 0 and any(run.limited for run in result.runs)
    if limited or ("inconclusive" in answers and result.verdict == "inconclusive"):
        raise typer.Exit(_EXIT_INCONCLUSIVE)
    if "regressed" in answers and result.verdict == "regressed":
        raise typer.Exit(_EXIT_ANSWER)


def _upto(rounds: int) -> range:
    return range(1, rounds + 1)


def _addresses(a: str, b: str, url: str, *, switched: bool) -> tuple[str, str]:
    from tailrace.model.errors import InputError

    if url and (a or b):
        raise InputError("--url is one address for both arms", place="--url", remedy="Give --a and --b, or --url alone")
    if url:
        return url, url
    if a and (b or switched):
        return a, b or a
    raise InputError(
        "an A/B needs two arms",
        place="ab",
        remedy="--a URL --b URL, or --url URL --switch 'COMMAND {arm}'",
    )


def _bench_options(words: Sequence[str]) -> tuple[str, ...]:
    """The rest of the command line, as `bench` would read it: what it would refuse is refused now, not in an hour."""
    from typer.main import get_command

    from tailrace.cli.bench import app as bench_app
    from tailrace.model.errors import InputError

    for word in words:
        name = word.partition("=")[0]
        if name in _OURS:
            raise InputError(f"{name} belongs before it", place="ab", remedy=f"`tailrace ab {name} …`")
    command: Any = get_command(bench_app)
    try:
        command.make_context("tailrace bench", ["http://localhost", *words])
    except typer.Exit:
        raise InputError("help of the load generator", place="ab", remedy="`tailrace bench --help`") from None
    except Exception as error:
        # Typer carries a click of its own or takes the installed one, by its version: what a usage error is called
        # differs, what it can say does not.
        said = getattr(error, "format_message", None)
        if said is None:
            raise
        raise InputError(said(), place="ab", remedy="`tailrace bench --help` shows them") from None
    return tuple(words)


def _show(step: AbStep) -> None:
    one = step.planned
    where = f"round {one.round}, {one.arm.upper()}"
    if step.summary is None:
        text = {"switching": "bringing it up", "waiting": "waiting for it"}.get(step.name, step.name)
        if step.name in ("switching", "again"):
            sys.stderr.write(f"{where}: {text}{': ' + step.text if step.text else ''}\n")
    else:
        found = step.summary
        failed = sum(found.errors.values())
        ttft = (found.from_schedule or found.metrics).get("ttft_ms")
        e2e = (found.from_schedule or found.metrics).get("e2e_ms")
        parts = [f"{found.n} requests"]
        for name, metric in (("TTFT", ttft), ("E2E", e2e)):
            if metric is not None and metric.p50 is not None:
                tail = next(
                    ((q, v) for q, v in (("p99", metric.p99), ("p95", metric.p95), ("p90", metric.p90)) if v), None
                )
                parts.append(f"{name} p50 {metric.p50:,.0f}" + (f" {tail[0]} {tail[1]:,.0f} ms" if tail else " ms"))
        if failed:
            parts.append(f"{failed} failed")
        if found.client.limited:
            parts.append("CLIENT LIMITED")
        sys.stderr.write(f"{where}: {', '.join(parts)}\n")
    sys.stderr.flush()


def _print(result: AbResult) -> None:
    print(printable(result.summary))
    rounds = result.rounds
    print(f"A = before, B = after; {rounds.n} rounds, {len(result.runs)} runs in {result.folder}/")
    names = [name for name in (*_SHOWN, *_RATES) if name in rounds.effects]
    if names:
        wide = max(map(len, names))
        print(f"\n{'':{wide}}  {'B against A':>11}  {'95 % interval':>20}  better in  a run alone is off by")
        for name in names:
            effect = rounds.effects[name]
            low, high = effect.ci_pct
            interval = "" if low is None or high is None else f"{low:+.1f} to {high:+.1f} %"
            alone = "" if effect.between_runs_pct is None else f"{effect.between_runs_pct:.0f} %"
            print(
                f"{name:{wide}}  {effect.mean_pct:>+9.1f} %  {interval:>20}  {f'{effect.better} of {rounds.n}':>9}  "
                f"{alone:>22}"
            )
    comparison = result.comparison
    notes = [*rounds.warnings]
    if comparison is not None:
        if comparison.trade_offs:
            print("\nTrade-offs:")
            for line in comparison.trade_offs:
                print(f"  - {printable(line)}")
        notes += comparison.checks
    if notes:
        print("\nGood to know:")
        for line in notes:
            print(f"  - {printable(line)}")
    runs = f"--a '{result.folder}/*-a.run' --b '{result.folder}/*-b.run'"
    print(f"\nAll runs again, with every metric: tailrace compare {runs}")
