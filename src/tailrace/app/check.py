"""`tailrace check`: everything that was given of engines and gateways, put together and judged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace.app import check_source
from tailrace.app.check_config import judge_config, objectives_of, wrong_config
from tailrace.app.check_source import Kind
from tailrace.engines.advice.card import CARDS, find_card
from tailrace.engines.advice.case import Case
from tailrace.engines.advice.judge import by_weight, judge
from tailrace.engines.advice.lengths import Lengths, lengths_of_scrape
from tailrace.engines.advice.model_shape import ModelShape, bytes_of, shape_of_config, shape_of_name, shape_of_size
from tailrace.engines.facts import EngineFacts, Fact, merge_facts, spoken
from tailrace.engines.flags.command_line import CommandLine
from tailrace.engines.flags.given import command_facts, is_secret, read_command, read_words
from tailrace.engines.flags.option import OptionTable
from tailrace.engines.flags.start_log import StartLog
from tailrace.engines.flags.tables import option_table
from tailrace.engines.flags.triton_model import TritonModel
from tailrace.engines.flags.version import parse_version
from tailrace.engines.flags.vllm_history import (
    V1_BY_DEFAULT,
    default_batch,
    default_chunked_prefill,
    default_memory_share,
)
from tailrace.gateway.config import Config, config_from, load_config
from tailrace.model.check import CheckedEngine, CheckFinding, CheckReport, InForce, Weight
from tailrace.model.errors import ConfigError, InputError
from tailrace.model.thresholds import Objectives

if TYPE_CHECKING:
    from tailrace.app.check_live import Live, LiveEngine

__all__ = ["CheckRequest", "check"]

ENGINES: Final = ("vllm", "sglang", "llamacpp", "triton", "tgi", "tensorrt_llm", "simulated")
_STATED: Final = "stated"
_DEFAULTS: Final[dict[str, dict[str, str | int | float]]] = {
    "vllm": {
        "scheduling_policy": "fcfs",
        "tensor_parallel": 1,
        "long_prefill_token_threshold": 0,
        "stream_interval": 1,
    },
    "sglang": {"scheduling_policy": "fcfs", "tensor_parallel": 1, "stream_interval": 1},
    "llamacpp": {"n_batch": 2048, "n_ubatch": 512},
    "tgi": {"max_concurrent_requests": 128, "waiting_served_ratio": 0.3},
}
_RECORDS: Final = 20_000


class CheckRequest(msgspec.Struct, kw_only=True):
    """What the user gave."""

    sources: Sequence[str] = ()
    commands: Sequence[str] = ()
    helped: str = ""
    """A file with the engine's --help."""
    help_of: str = ""
    """A program to ask for it."""
    lengths: str = ""
    objectives: Objectives | None = None
    engine: str = ""
    version: str = ""
    model_size: str = ""
    model_config: str = ""
    dtype: str = ""
    gpu: str = ""
    token: str = ""
    partial: bool = False


class _Subject(msgspec.Struct, kw_only=True):
    """One engine while its parts come together."""

    name: str
    engine: str = ""
    command: CommandLine | None = None
    log: StartLog | None = None
    live: LiveEngine | None = None
    models: list[TritonModel] = []


class _Gathered:
    def __init__(self) -> None:
        self.commands: list[tuple[str, CommandLine]] = []
        self.logs: list[StartLog] = []
        self.engines: list[LiveEngine] = []
        self.models: list[TritonModel] = []
        self.configs: list[tuple[str, Config]] = []
        self.helped: OptionTable | None = None
        self.lengths: Lengths | None = None
        self.shape: ModelShape | None = None
        self.findings: list[CheckFinding] = []
        self.not_understood: list[str] = []
        self.read: list[str] = []


def check(request: CheckRequest) -> CheckReport:
    """Judge what was given. InputError (exit 2) for what cannot be read, with the remedy."""
    if request.engine and request.engine not in ENGINES:
        raise InputError(
            f"unknown engine {request.engine!r}", place="--engine", remedy=f"One of: {', '.join(ENGINES)}."
        )
    gathered = _gather(request)
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
    objectives = request.objectives or next((objectives_of(config) for _, config in gathered.configs), None)
    for subject in _subjects(gathered, request):
        case, engine = _case(subject, gathered, request)
        case.card = card or find_card(case.facts.text("gpu"))
        if objectives is not None:
            case.objectives = objectives
        findings += judge(case)
        needs += [need for need in case.needs if need not in needs]
        checked.append(engine)
    facts = [_known_facts(one) for one in checked]
    for name, config in gathered.configs:
        findings += judge_config(config, name, facts[0] if facts else None)
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
    return f"{names or 'nothing to check'}: {found or 'nothing to change'}."


# -- gathering


def _gather(request: CheckRequest) -> _Gathered:
    out = _Gathered()
    kinds = [(source, check_source.kind_of(source)) for source in request.sources]
    # The list of options first: it tells which options take values.
    out.helped = _helped(request, [source for source, kind in kinds if kind is Kind.HELP])
    if out.helped is not None:
        out.read.append(out.helped.source)
    for text in request.commands:
        command = read_command(text, helped=out.helped, engine=request.engine)
        out.commands.append(("command line", command))
        if not (command.engine or request.engine):
            out.not_understood.append("the command line names no engine that is known; say which with --engine")
    for source, kind in kinds:
        if kind is not Kind.HELP:
            out.read.append(source)
            _take(out, source, kind, request)
    out.shape = _shape(request) or out.shape
    if request.lengths:
        out.lengths = _lengths(request.lengths, request)
        out.read.append(request.lengths)
    return out


def _helped(request: CheckRequest, files: Sequence[str]) -> OptionTable | None:
    """The engine's own list of options, saved or asked for."""
    saved = request.helped or next(iter(files), "")
    if saved:
        return check_source.read_help(saved, engine=request.engine)
    return check_source.run_help(request.help_of) if request.help_of else None


def _shape(request: CheckRequest) -> ModelShape | None:
    if request.model_config:
        said = check_source.read_model_config(request.model_config)
        shape = shape_of_config(said, source=request.model_config)
        if shape is None:
            raise InputError(
                "this describes no transformer", place=request.model_config, remedy="Give the model's config.json."
            )
        return shape
    shape = shape_of_size(request.model_size) if request.model_size else None
    if request.model_size and shape is None:
        raise InputError(f"unknown size {request.model_size!r}", place="--model-size", remedy="For example 8b, 70b.")
    return shape


def _take(out: _Gathered, source: str, kind: Kind, request: CheckRequest) -> None:
    path = Path(source)
    if kind is Kind.URL:
        from tailrace.app.check_live import look  # noqa: PLC0415  (aiohttp, only for an address)

        _take_live(out, source, asyncio.run(look(source, token=request.token, limit=_RECORDS)))
    elif kind is Kind.LOG:
        _take_log(out, source)
    elif kind in {Kind.COMMAND, Kind.CONTAINER}:
        out.commands += _commands(path, kind, out.helped, request.engine)
    elif kind is Kind.TRITON:
        out.models += check_source.read_models(source)
    elif kind is Kind.CONFIG:
        try:
            out.configs.append((path.name, load_config(path)))
        except ConfigError as error:
            out.findings.append(wrong_config(error, path.name))
    elif kind is Kind.MODEL:
        out.shape = shape_of_config(check_source.read_model_config(source), source=source)
    elif kind is Kind.LENGTHS:
        out.lengths = _lengths(source, request)
    elif kind is Kind.SCRAPE:
        from tailrace.app.check_live import saved_scrape  # noqa: PLC0415

        out.engines.append(saved_scrape(path.name, check_source.read_text(path)))


def _commands(path: Path, kind: Kind, helped: OptionTable | None, engine: str) -> list[tuple[str, CommandLine]]:
    if kind is Kind.CONTAINER:
        return check_source.read_containers(path, helped)
    if path.suffix in {".yaml", ".yml"}:
        return [(path.name, read_words(check_source.options_file_words(path), helped=helped, engine=engine))]
    return [(path.name, read_command(check_source.read_text(path), helped=helped, engine=engine))]


def _take_log(out: _Gathered, source: str) -> None:
    log = check_source.read_log(source)
    out.logs.append(log)
    if not log.engine:
        out.not_understood.append(f"{source}: {log.lines} lines, none of which is an engine's that is known")
    if log.cut:
        out.not_understood.append(
            f"{source}: {log.cut} lines were longer than 128 KiB; only their beginnings were read"
        )


def _take_live(out: _Gathered, source: str, live: Live) -> None:
    out.engines += live.engines
    for engine in live.engines:
        out.not_understood += engine.missing
    if live.gateway is None:
        return
    if live.gateway.config is not None:
        try:
            out.configs.append((source, config_from(live.gateway.config, where=source)))
        except ConfigError as error:
            # Secrets are left out of what a gateway tells, so some of it may not be a whole configuration.
            out.not_understood.append(f"{source}/config: {error}")
    if live.gateway.records.strip() and out.lengths is None:
        from tailrace.app.check_lengths import lengths_of_records  # noqa: PLC0415

        out.lengths = lengths_of_records(live.gateway.records, f"{source}/records")


def _lengths(source: str, request: CheckRequest) -> Lengths:
    from tailrace.app.check_lengths import read_lengths  # noqa: PLC0415  (the store, only for records)

    return read_lengths(source, allow_partial=request.partial, token=request.token)


# -- putting together


def _subjects(gathered: _Gathered, request: CheckRequest) -> list[_Subject]:
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


def _engine_of(subject: _Subject, gathered: _Gathered, request: CheckRequest) -> str:
    told = [
        subject.engine if subject.engine != "openai_compatible" else "",
        subject.live.engine if subject.live is not None and subject.live.engine != "openai_compatible" else "",
        subject.command.engine if subject.command is not None else "",
        subject.log.engine if subject.log is not None else "",
        gathered.helped.engine if gathered.helped is not None else "",
    ]
    return request.engine or next((name for name in told if name), "") or "openai_compatible"


def _case(subject: _Subject, gathered: _Gathered, request: CheckRequest) -> tuple[Case, CheckedEngine]:
    engine = _engine_of(subject, gathered, request)
    helped = gathered.helped if gathered.helped is not None and gathered.helped.engine in {"", engine} else None
    table = helped or option_table(engine)
    facts, defaults = _facts(subject, engine, request, table, helped=helped is not None)
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
        settings=_settings(facts, defaults),
    )
    return case, checked


def _facts(
    subject: _Subject, engine: str, request: CheckRequest, table: OptionTable | None, *, helped: bool
) -> tuple[EngineFacts, dict[str, Fact]]:
    """(what is in force, the part of it that nobody set): what runs beats what the log says, and that the command."""
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
    merged = merge_facts(*said, stated)
    defaults = {key: fact for key, fact in _defaults(engine, merged, request.gpu, table).items() if not merged.get(key)}
    return EngineFacts({**defaults, **merged.known}, merged.contradictions), defaults


def _defaults(engine: str, facts: EngineFacts, gpu: str, table: OptionTable | None) -> dict[str, Fact]:
    """What holds where nobody said anything, of this version."""
    version = parse_version(facts.text("version"))
    of = f"default of {engine} {version}" if version is not None else f"default of {engine}"
    values: dict[str, Any] = dict(_DEFAULTS.get("vllm" if engine == "simulated" else engine, {}))
    if engine == "vllm":
        values |= {
            "chunked_prefill": default_chunked_prefill(version),
            "gpu_memory_utilization": default_memory_share(version),
        }
        if version is None or version >= V1_BY_DEFAULT:
            values["prefix_caching"] = True
        card = find_card(gpu) if gpu else None
        cpu = "cpu" in facts.text("device") or "+cpu" in facts.text("version")
        newest = version is None or (table is not None and str(version) == table.version)
        batch = (
            default_batch(card.memory / 2**30 if card is not None else None, a100="a100" in gpu.lower(), cpu=cpu)
            if newest and (card is not None or cpu)
            else None
        )
        if batch is not None:
            values |= {"max_num_batched_tokens": batch[0], "max_num_seqs": batch[1]}
    return {key: Fact(value, of) for key, value in values.items() if value is not None}


def _settings(facts: EngineFacts, defaults: dict[str, Fact]) -> list[InForce]:
    against = {one.key: f"{spoken(one.other.value)} ({one.other.source})" for one in facts.contradictions}
    return [
        InForce(
            key=key,
            value=fact.value,
            source=fact.source,
            default=defaults.get(key) is fact,
            contradicts=against.get(key, ""),
        )
        for key, fact in sorted(facts.known.items(), key=lambda item: (defaults.get(item[0]) is item[1], item[0]))
        if not is_secret(key) and key != "version"
    ]


def _known_facts(checked: CheckedEngine) -> EngineFacts:
    return EngineFacts({one.key: Fact(one.value, one.source) for one in checked.settings})
