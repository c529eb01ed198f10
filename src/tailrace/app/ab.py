"""Two arms measured in turn: `tailrace ab`.

Each run is a load generator of its own (a child: `tailrace bench …`, as one would type it), with the seed of its round,
so that both arms of a round get the same arrivals and lengths. Which arm goes first is drawn, of two rounds one each
way: a disturbance that keeps time with a strict alternation would always hit the same arm.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import numpy as np

from tailrace.analyze.bench_summary import summarise_run
from tailrace.analyze.compare import compare
from tailrace.analyze.rounds import MIN_ROUNDS, Round, Rounds, agree_on
from tailrace.app.children import child_environment, die_with_parent
from tailrace.model.errors import InputError, RunFileError, TargetError
from tailrace.model.measurement import BenchSummary, Comparison, Verdict
from tailrace.store.run_file import NOTHING_YET, Run, read_run

__all__ = ["AbOptions", "AbResult", "AbStep", "Planned", "plan_runs", "run_ab"]

ARMS: Final = ("a", "b")
_LIMITED: Final = 3
_INTERRUPTED: Final = 130
_POLL_S: Final = 0.25
_ANSWER_S: Final = 5.0
_STOP_GRACE_S: Final = 15.0
"""A load generator that was told to stop closes its run file and summarises it."""
_SAID: Final = 2000


class AbOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured, and how often."""

    urls: tuple[str, str]
    """Of A and B; the same one twice where `switch` changes what stands behind it."""
    rounds: int
    folder: Path
    bench: tuple[str, ...] = ()
    """Options of `tailrace bench`, as they were typed."""
    switch: str = ""
    """A shell command that brings up an arm: `{arm}` is `a` or `b`, `TAILRACE_ARM` too. Run before every run."""
    seed: int = 0
    settle_s: float = 2.0
    """Rest before each run, so that a run does not begin in what the one before left behind."""
    ready_within_s: float = 120.0
    switch_within_s: float = 300.0
    again: int = 2
    """How often a run whose load generator was the limit is repeated."""
    read_only: bool = False
    """Measure nothing: judge what the folder holds."""

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        if self.rounds < 1:
            raise InputError(f"must be at least 1, got {self.rounds}", place="--rounds")
        if not self.switch and self.urls[0] == self.urls[1]:
            raise InputError(
                "both arms are the same address, and nothing switches what stands behind it",
                place="--a/--b",
                remedy="Give two addresses, or one and --switch 'COMMAND {arm}'",
            )


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """One run to come."""

    round: int
    """From 1."""
    arm: str
    seed: int
    file: str


class AbStep(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, for whoever shows it."""

    planned: Planned
    name: str
    """`switching`, `waiting`, `measuring`, `measured`, `again`."""
    summary: BenchSummary | None = None
    text: str = ""


class AbRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run as it was done."""

    round: int
    arm: str
    file: str
    limited: bool


class AbResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `tailrace ab --json` prints."""

    schema: int = 1
    verdict: Verdict
    summary: str
    folder: str
    runs: list[AbRun]
    rounds: Rounds
    comparison: Comparison | None
    """Of all runs of both arms together; absent where there was no whole round."""
    interrupted: bool = False


class _Interrupted(Exception):  # noqa: N818  (named for what happened)
    pass


def plan_runs(options: AbOptions) -> list[Planned]:
    """All runs in order. Of two rounds one begins with A and the other with B; which is which is drawn from the seed.

    More rounds go on where fewer ended.
    """
    rng = np.random.default_rng([options.seed, 0xAB])
    out: list[Planned] = []
    a_first = False
    for i in range(1, options.rounds + 1):
        a_first = not a_first if i % 2 == 0 else bool(rng.random() < 0.5)
        out += [
            Planned(round=i, arm=arm, seed=options.seed + i - 1, file=f"{i:02}-{arm}.run")
            for arm in (ARMS if a_first else ARMS[::-1])
        ]
    return out


def run_ab(options: AbOptions, on_step: Callable[[AbStep], None]) -> AbResult:
    """Measure every run that the folder does not hold yet, then judge.

    Ctrl-C (KeyboardInterrupt) ends the run under way and judges the whole rounds that there are. Raises `InputError`
    when the load generator or the switching command refuses, `TargetError` when an arm does not come up.
    """
    planned = plan_runs(options)
    interrupted = False
    if not options.read_only:
        _prepare(options)
        try:
            with _told_to_end():
                for one in planned:
                    if not _whole(options.folder / one.file):
                        _measure(options, one, on_step)
        except (_Interrupted, KeyboardInterrupt):
            interrupted = True
    return _judge(options, planned, interrupted=interrupted)


@contextlib.contextmanager
def _told_to_end() -> Iterator[None]:
    """SIGTERM and a closed terminal end the run under way as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _prepare(options: AbOptions) -> None:
    """Make the folder, or go on in one that the same command made."""
    folder = options.folder
    terms = {
        "tailrace_ab": 1,
        "urls": list(options.urls),
        "switch": options.switch,
        "seed": options.seed,
        "bench": list(options.bench),
    }
    note = folder / "ab.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if note.exists() and any(folder.glob("*.run")):
            before: Any = None
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                before = msgspec.json.decode(note.read_bytes())
            if before != terms:
                raise InputError(
                    "this folder holds another A/B", place=str(folder), remedy="Give --out a folder that is not there"
                )
        else:
            if any(folder.glob("*.run")):
                raise InputError(
                    "this folder holds runs of something else", place=str(folder), remedy="Give another --out"
                )
            note.write_bytes(msgspec.json.format(msgspec.json.encode(terms)) + b"\n")
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror or error}", place=str(folder), remedy="Give --out another folder"
        ) from None


def _whole(path: Path) -> bool:
    """Whether there is a run that ended as it should."""
    if not path.exists():
        return False
    try:
        trailer = read_run(path, allow_partial=True).trailer
    except RunFileError as error:
        if error.message in NOTHING_YET:
            return False  # killed before it had written anything
        raise
    return trailer is not None and not trailer.interrupted


# -- measuring


def _measure(options: AbOptions, one: Planned, on_step: Callable[[AbStep], None]) -> None:
    url = options.urls[ARMS.index(one.arm)]
    if options.switch:
        on_step(AbStep(planned=one, name="switching"))
        _switch(options, one.arm)
    on_step(AbStep(planned=one, name="waiting"))
    _wait_until_up(url, options.ready_within_s)
    time.sleep(options.settle_s)
    for attempt in range(options.again + 1):
        on_step(AbStep(planned=one, name="measuring"))
        limited = _bench(options, one, url)
        if limited and attempt < options.again:
            on_step(AbStep(planned=one, name="again", text="the load generator was the limit"))
            continue
        break
    on_step(AbStep(planned=one, name="measured", summary=summarise_run(read_run(options.folder / one.file))))


def _bench(options: AbOptions, one: Planned, url: str) -> bool:
    """One run; whether its load generator was the limit."""
    out = options.folder / one.file
    command = [sys.executable, "-m", "tailrace", "bench", url, *options.bench]
    command += ["--seed", str(one.seed), "--out", str(out), "--json"]
    done, _, said = _run(command, within_s=None)
    if done == _INTERRUPTED:
        raise _Interrupted
    if done not in (0, _LIMITED):
        raise InputError(
            f"the run of arm {one.arm} failed ({done}): {said.strip()[-_SAID:] or 'it said nothing'}", place=url
        )
    return done == _LIMITED


def _switch(options: AbOptions, arm: str) -> None:
    # The command is a shell's, given by whoever runs this; {arm} is one of two letters.
    command = ["/bin/sh", "-c", options.switch.replace("{arm}", arm)]
    code, out, said = _run(command, within_s=options.switch_within_s, arm=arm)
    if code:
        words = (said or out).strip()[-_SAID:]
        raise InputError(
            f"it did not bring up arm {arm} ({'not done in time' if code < 0 else f'exit {code}'}): {words}",
            place="--switch",
            remedy=f"Try it by hand: {shlex.join(command)}",
        )


def _run(command: Sequence[str], *, within_s: float | None, arm: str = "") -> tuple[int, str, str]:
    """(exit code, output, errors). A command that takes too long is ended (-9); Ctrl-C reaches it as SIGINT.

    What it says goes to files: a pipe would be held open by a server that it leaves in the background, and the wait
    for the pipe's end would be one for that server's end.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        child = subprocess.Popen(  # noqa: S603  (the user's own command, or ours)
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            # A terminal sees the run's own progress.
            stderr=None if not arm and sys.stderr.isatty() else said,
            env={**child_environment(), "TAILRACE_ARM": arm} if arm else child_environment(),
            start_new_session=True,
            # Whatever ends us: a load generator that nobody waits for must not go on loading the server.
            preexec_fn=die_with_parent,  # noqa: PLW1509  (no thread of ours is running)
        )
        try:
            child.wait(within_s)
        except subprocess.TimeoutExpired:
            _end(child, signal.SIGKILL)
            return -signal.SIGKILL, "", f"not done after {within_s:g} s"
        except KeyboardInterrupt:
            _end(child, signal.SIGINT)
            raise _Interrupted from None
        except BaseException:
            _end(child, signal.SIGKILL)
            raise
        return child.returncode, _last_words(out), _last_words(said)


def _last_words(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - 4 * _SAID))
    return file.read().decode(errors="replace")


def _end(child: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """Tell it to stop; kill it after the grace period, or at once when Ctrl-C comes again."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, how)
    with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        child.wait(_STOP_GRACE_S)
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _wait_until_up(url: str, within_s: float) -> None:
    """Until the address answers HTTP below 500, in two polls in a row: what is coming up may flap."""
    deadline = time.monotonic() + within_s
    good, why = 0, "no answer"
    while good < 2:
        try:
            with urllib.request.urlopen(_models(url), timeout=_ANSWER_S) as answer:  # noqa: S310  (the user's own URL)
                good, why = good + (answer.status < 500), f"status {answer.status}"
        except urllib.error.HTTPError as error:
            good, why = (good + 1 if error.code < 500 else 0), f"status {error.code}"
        except (OSError, ValueError) as error:
            good, why = 0, str(getattr(error, "reason", error))
        if good < 2:
            if time.monotonic() > deadline:
                raise TargetError(
                    f"not up after {within_s:g} s: {why}", place=url, remedy="Raise --ready-within, or see its log"
                )
            time.sleep(_POLL_S)


def _models(url: str) -> str:
    base, at, _ = url.partition("/v1")
    return f"{base.rstrip('/')}/v1/models" if at or url.count("/") <= 3 else url


# -- judging


def _judge(options: AbOptions, planned: Sequence[Planned], *, interrupted: bool) -> AbResult:
    runs: dict[tuple[int, str], Run] = {
        (one.round, one.arm): read_run(options.folder / one.file)
        for one in planned
        if _whole(options.folder / one.file)
    }
    done = [
        AbRun(round=one.round, arm=one.arm, file=one.file, limited=_limited(runs[one.round, one.arm]))
        for one in planned
        if (one.round, one.arm) in runs
    ]
    whole = [i for i in range(1, options.rounds + 1) if all((i, arm) in runs for arm in ARMS)]
    usable = [i for i in whole if not any(_limited(runs[i, arm]) for arm in ARMS)]
    pairs = [(runs[i, "a"], runs[i, "b"]) for i in usable]
    comparison = compare([a for a, _ in pairs], [b for _, b in pairs], names=("A", "B")) if pairs else None
    rounds = agree_on(
        [
            Round(
                a=summarise_run(a),
                b=summarise_run(b),
                a_first=a.header.started_unix_ns < b.header.started_unix_ns,
            )
            for a, b in pairs
        ],
        () if comparison is None else comparison.headline,
    )
    if len(usable) < len(whole):
        rounds = msgspec.structs.replace(
            rounds,
            warnings=[
                f"{len(whole) - len(usable)} of {len(whole)} rounds are left out: the load generator was the limit.",
                *rounds.warnings,
            ],
        )
    verdict, summary = _verdict(comparison, rounds, limited=bool(whole) and not usable)
    return AbResult(
        verdict=verdict,
        summary=summary,
        folder=str(options.folder),
        runs=done,
        rounds=rounds,
        comparison=comparison,
        interrupted=interrupted,
    )


def _limited(run: Run) -> bool:
    return run.trailer is not None and run.trailer.client.limited


def _verdict(comparison: Comparison | None, rounds: Rounds, *, limited: bool) -> tuple[Verdict, str]:
    """The verdict of all runs together, unless the rounds do not bear it out."""
    if comparison is None:
        why = (
            "client_limited: the load generator was the limit in every round" if limited else "there is no whole round"
        )
        return Verdict.INCONCLUSIVE, f"No verdict: {why}."
    wanted = {Verdict.IMPROVED: -1.0, Verdict.REGRESSED: 1.0}.get(comparison.verdict)
    # That failures rose is told whatever the latencies of the others did.
    if wanted is None or rounds.n < MIN_ROUNDS or comparison.decided_by == "failures":
        return comparison.verdict, comparison.summary
    judged = [(name, rounds.effects[name]) for name in comparison.headline if name in rounds.effects]
    if not judged or any(effect.excludes_zero and effect.mean_pct * wanted > 0 for _, effect in judged):
        return comparison.verdict, comparison.summary
    name, effect = judged[0]
    return Verdict.INCONCLUSIVE, (
        f"Inconclusive: the rounds do not agree. {name} was lower in B in {effect.better} of {rounds.n} rounds "
        f"({effect.mean_pct:+.0f} % on average, 95 % interval {effect.ci_pct[0]:+.0f} % to {effect.ci_pct[1]:+.0f} %); "
        "more rounds (--rounds, the same --out) would tell."
    )
