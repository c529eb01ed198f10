"""`tailrace check`: everything that was given of engines and gateways, put together and judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.app.check_config import judge_config, objectives_of
from tailrace.app.check_gather import CheckRequest, Gathered, gather
from tailrace.app.check_settings import facts_in_force, facts_of, settings_of
from tailrace.app.config_finding import with_lines
from tailrace.engines.advice.card import CARDS, find_card
from tailrace.engines.advice.case import Case
from tailrace.engines.advice.judge import by_weight, judge
from tailrace.engines.advice.lengths import lengths_of_scrape
from tailrace.engines.advice.model_shape import bytes_of, shape_of_name
from tailrace.engines.facts import Fact
from tailrace.engines.flags.command_line import CommandLine
from tailrace.engines.flags.given import command_facts
from tailrace.engines.flags.option import OptionTable
from tailrace.engines.flags.start_log import StartLog
from tailrace.engines.flags.tables import option_table
from tailrace.engines.flags.triton_model import TritonModel
from tailrace.engines.flags.version import parse_version
from tailrace.model.check import CheckedEngine, CheckReport, Weight
from tailrace.model.errors import InputError

if TYPE_CHECKING:
    from tailrace.app.check_live import LiveEngine

__all__ = ["CheckRequest", "check"]

ENGINES: Final = ("vllm", "sglang", "llamacpp", "triton", "tgi", "tensorrt_llm", "simulated")
_STATED: Final = "stated"


class _Subject(msgspec.Struct, kw_only=True):
    """One engine while its parts come together."""

    name: str
    engine: str = ""
    command: CommandLine | None = None
    log: StartLog | None = None
    live: LiveEngine | None = None
    models: list[TritonModel] = []


def check(request: CheckRequest) -> CheckReport:
    """Judge what was given. InputError (exit 2) for what cannot be read, with the remedy."""
    if request.engine and request.engine not in ENGINES:
        raise InputError(
            f"unknown engine {request.engine!r}", place="--engine", remedy=f"One of: {', '.join(ENGINES)}."
        )
    gathered = gather(request)
    card = find_card(request.gpu) if request.gpu else None
    if request.gpu and card is None:
        raise InputError(f"unknown card {request.gpu!r}", place="--gpu", remedy=f"One of: {', '.join(CARDS)}.")
    if request.dtype and bytes_of(request.dtype) is None:
        raise InputError(
            f"unknown precision {request.dtype!r}", place="--dtype", remedy="bf16, fp16, fp8, int8, awq, …"
        )
    checked: list[CheckedEngine] = []
    findings = list(gathered.findings)
    needs: list[str] = []
    objectives = request.objectives or next((objectives_of(config) for _, config, _ in gathered.configs), None)
    for subject in _subjects(gathered, request):
        case, engine = _case(subject, gathered, request)
        case.card = card or find_card(case.facts.text("gpu"))
        if objectives is not None:
            case.objectives = objectives
        findings += judge(case)
        needs += [need for need in case.needs if need not in needs]
        checked.append(engine)
    facts = [facts_of(one) for one in checked]
    for name, config, lines in gathered.configs:
        found = judge_config(config, name, facts[0] if facts else None, client_timeout_ns=request.client_timeout_ns)
        findings += with_lines(found, lines)
        checked.append(CheckedEngine(name=name, engine="gateway"))
    if not checked and not findings:
        raise InputError(
            "there is no engine in what was given",
            place=", ".join(gathered.read) or "check",
            remedy="Give an engine's address, its log, or its command line (--command 'vllm serve …').",
        )
    ordered = by_weight(findings)
    counts = {str(weight): sum(1 for one in ordered if one.weight is weight) for weight in Weight}
    return CheckReport(
        engines=checked,
        findings=ordered,
        counts=counts,
        needs=needs,
        not_understood=gathered.not_understood,
        sources=gathered.read,
        summary=_summary(checked, counts),
    )


def _summary(checked: Sequence[CheckedEngine], counts: dict[str, int]) -> str:
    names = ", ".join(f"{one.name} ({one.engine}{' ' + one.version if one.version else ''})" for one in checked)
    found = ", ".join(
        f"{counts[weight]} {weight}{'s' if counts[weight] != 1 and weight in {'error', 'warning'} else ''}"
        for weight in ("error", "warning", "advice")
        if counts[weight]
    )
    judged = any(one.engine != "openai_compatible" for one in checked)
    nothing = "nothing to change" if judged else "nothing is known of it that could be judged"
    return f"{names or 'nothing to check'}: {found or nothing}."


def _subjects(gathered: Gathered, request: CheckRequest) -> list[_Subject]:
    """One command line, one log and one address belong together; several of a kind are engines of their own."""
    out: list[_Subject] = [
        _Subject(name=live.name or live.url, engine=live.engine, live=live, models=list(live.models))
        for live in gathered.engines
    ]
    for name, command in gathered.commands:
        free = next((one for one in out if one.command is None and _same_engine(one.engine, command.engine)), None)
        if free is None or len(gathered.commands) > 1:
            out.append(_Subject(name=name, engine=command.engine, command=command))
        else:
            free.command = command
    for log in gathered.logs:
        if not log.engine and (gathered.commands or gathered.engines):
            continue
        free = next((one for one in out if one.log is None and _same_engine(one.engine, log.engine)), None)
        if free is None or len(gathered.logs) > 1:
            if log.engine or request.engine:
                out.append(_Subject(name=log.name, engine=log.engine, log=log))
        else:
            free.log = log
            free.engine = free.engine or log.engine
    if gathered.models:
        triton = next((one for one in out if one.engine == "triton"), None)
        if triton is None:
            first = gathered.models[0]
            name = first.source if len(gathered.models) == 1 else "Triton's models"
            out.append(_Subject(name=name, engine="triton", models=list(gathered.models)))
        else:
            triton.models += gathered.models
    if not out and gathered.shape is not None and request.gpu:
        out.append(_Subject(name="plan", engine=request.engine or "vllm"))
    return out


def _same_engine(one: str, other: str) -> bool:
    alike = {one, other}
    return len(alike) == 1 or "" in alike or alike == {"vllm", "simulated"} or "openai_compatible" in alike


def _engine_of(subject: _Subject, gathered: Gathered, request: CheckRequest) -> str:
    told = [
        subject.engine if subject.engine != "openai_compatible" else "",
        subject.live.engine if subject.live is not None and subject.live.engine != "openai_compatible" else "",
        subject.command.engine if subject.command is not None else "",
        subject.log.engine if subject.log is not None else "",
        gathered.helped.engine if gathered.helped is not None else "",
    ]
    return request.engine or next((name for name in told if name), "") or "openai_compatible"


def _case(subject: _Subject, gathered: Gathered, request: CheckRequest) -> tuple[Case, CheckedEngine]:
    engine = _engine_of(subject, gathered, request)
    helped = gathered.helped if gathered.helped is not None and gathered.helped.engine in {"", engine} else None
    table = helped or option_table(engine)
    said = _said(subject, engine, request, table, helped=helped is not None)
    facts, defaults = facts_in_force(said, engine=engine, gpu=request.gpu, table=table)
    live = subject.live
    lengths = gathered.lengths
    if lengths is None and live is not None and live.scrape is not None:
        lengths = lengths_of_scrape(live.scrape, source=f"{live.url}/metrics" if live.url else live.name)
    case = Case(
        name=subject.name,
        engine=engine,
        facts=facts,
        command=subject.command,
        table=table,
        helped=helped is not None,
        lengths=lengths,
        scrape=live.scrape if live is not None else None,
        state=live.state if live is not None else None,
        load=subject.log.load if subject.log is not None and subject.log.load.lines else None,
        problems=subject.log.problems if subject.log is not None else [],
        log_name=subject.log.name if subject.log is not None else "",
        models=subject.models,
        not_ready=live.not_ready if live is not None else [],
        shape=gathered.shape or shape_of_name(facts.text("model")),
        url=live.url if live is not None else "",
    )
    options_file = subject.command.last("--config") if subject.command is not None else None
    if options_file is not None and options_file.value:
        case.need(f"the options in {options_file.value}, which the command line names: give that file as well")
    told = facts.get("version")
    checked = CheckedEngine(
        name=subject.name,
        engine=engine,
        version=facts.text("version"),
        version_source=told.source if told is not None else "",
        settings=settings_of(facts, defaults),
    )
    return case, checked


def _said(
    subject: _Subject, engine: str, request: CheckRequest, table: OptionTable | None, *, helped: bool
) -> list[dict[str, Fact]]:
    """What each source says, the weakest first: the command line, the log, what runs, and what the user states."""
    said: list[dict[str, Fact]] = []
    if subject.command is not None:
        version = parse_version(request.version or subject.command.version)
        ours = table is not None and table.complete and (helped or version in {None, parse_version(table.version)})
        said.append(command_facts(subject.command, table, engine=engine, known_only=ours))
    if subject.log is not None:
        said.append(subject.log.facts)
    if subject.live is not None:
        said += [subject.live.metrics_facts, subject.live.facts]
    if len(subject.models) == 1:
        said.append(subject.models[0].facts())
    stated: dict[str, Fact] = {}
    if request.version:
        stated["version"] = Fact(request.version.removeprefix("v"), f"{_STATED}: --engine-version")
    if request.dtype:
        stated["dtype"] = Fact(request.dtype, f"{_STATED}: --dtype")
    return [*said, stated]
