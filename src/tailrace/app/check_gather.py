"""What `tailrace check` was given, read: command lines, logs, pages, files, each for what it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.app import check_source
from tailrace.app.check_config import wrong_config
from tailrace.app.check_source import Kind
from tailrace.engines.advice.lengths import Lengths
from tailrace.engines.advice.model_shape import ModelShape, shape_of_config, shape_of_size
from tailrace.engines.flags.command_line import CommandLine
from tailrace.engines.flags.given import read_command, read_words
from tailrace.engines.flags.option import OptionTable
from tailrace.engines.flags.start_log import StartLog
from tailrace.engines.flags.triton_model import TritonModel
from tailrace.gateway.config import Config, config_from, load_config
from tailrace.gateway.plain_yaml import YamlLines, lines_of
from tailrace.model.check import CheckFinding
from tailrace.model.errors import ConfigError, InputError
from tailrace.model.thresholds import Objectives

if TYPE_CHECKING:
    from tailrace.app.check_live import Live, LiveEngine

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
    client_timeout_ns: int | None = None
    """How long clients wait for a byte; unset: as the OpenAI SDK does."""


class Gathered:
    """Everything that was read, before it is known what belongs together."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, CommandLine]] = []
        self.logs: list[StartLog] = []
        self.engines: list[LiveEngine] = []
        self.models: list[TritonModel] = []
        self.configs: list[tuple[str, Config, YamlLines | None]] = []
        """Name, what it says, and where its keys stand, where it is a file."""
        self.helped: OptionTable | None = None
        self.lengths: Lengths | None = None
        self.shape: ModelShape | None = None
        self.findings: list[CheckFinding] = []
        self.not_understood: list[str] = []
        self.read: list[str] = []


def gather(request: CheckRequest) -> Gathered:
    """Read every source. InputError (exit 2) for what cannot be read, with the remedy."""
    out = Gathered()
    kinds = [(source, check_source.kind_of(source)) for source in request.sources]
    # The list of options first: it tells which options take values.
    out.helped = _helped(request, [source for source, kind in kinds if kind is Kind.HELP])
    if out.helped is not None:
        out.read.append(out.helped.source)
    lines = [source for source, kind in kinds if kind is Kind.COMMAND_LINE]
    for text in (*request.commands, *lines):
        if not text.strip():
            raise InputError(
                "the command line is empty", place="--command", remedy="Quote it: --command 'vllm serve …'."
            )
        command = read_command(text, helped=out.helped, engine=request.engine)
        out.commands.append(("command line", command))
        if not (command.engine or request.engine):
            out.not_understood.append("the command line names no engine that is known; say which with --engine")
    for source, kind in kinds:
        if kind not in {Kind.HELP, Kind.COMMAND_LINE}:
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


def _take(out: Gathered, source: str, kind: Kind, request: CheckRequest) -> None:
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
        lines = _lines(path)
        try:
            out.configs.append((path.name, load_config(path), lines))
        except ConfigError as error:
            out.findings.append(wrong_config(error, path.name, lines))
    elif kind is Kind.MODEL:
        out.shape = shape_of_config(check_source.read_model_config(source), source=source)
    elif kind is Kind.LENGTHS:
        out.lengths = _lengths(source, request)
    elif kind is Kind.SCRAPE:
        from tailrace.app.check_live import saved_scrape  # noqa: PLC0415

        out.engines.append(saved_scrape(path.name, check_source.read_text(path)))


def _lines(path: Path) -> YamlLines | None:
    import yaml  # noqa: PLC0415  (only when a file is used)

    try:
        return lines_of(check_source.read_text(path))
    except yaml.YAMLError:
        return None  # the error of reading it says where


def _commands(path: Path, kind: Kind, helped: OptionTable | None, engine: str) -> list[tuple[str, CommandLine]]:
    if kind is Kind.CONTAINER:
        return check_source.read_containers(path, helped)
    if path.suffix in {".yaml", ".yml"}:
        return [(path.name, read_words(check_source.options_file_words(path), helped=helped, engine=engine))]
    return [(path.name, read_command(check_source.read_text(path), helped=helped, engine=engine))]


def _take_log(out: Gathered, source: str) -> None:
    log = check_source.read_log(source)
    out.logs.append(log)
    if not log.engine:
        out.not_understood.append(f"{source}: {log.lines} lines, none of which is an engine's that is known")
    if log.cut:
        out.not_understood.append(
            f"{source}: {log.cut} lines were longer than 128 KiB; only their beginnings were read"
        )


def _take_live(out: Gathered, source: str, live: Live) -> None:
    out.engines += live.engines
    for engine in live.engines:
        out.not_understood += engine.missing
    if live.gateway is None:
        return
    if live.gateway.config is not None:
        try:
            out.configs.append((source, config_from(live.gateway.config, where=source), None))
        except ConfigError as error:
            # Secrets are left out of what a gateway tells, so some of it may not be a whole configuration.
            out.not_understood.append(f"{source}/config: {error}")
    if live.gateway.records.strip() and out.lengths is None:
        from tailrace.app.check_lengths import lengths_of_records  # noqa: PLC0415

        out.lengths = lengths_of_records(live.gateway.records, f"{source}/records")


def _lengths(source: str, request: CheckRequest) -> Lengths:
    from tailrace.app.check_lengths import read_lengths  # noqa: PLC0415  (the store, only for records)

    return read_lengths(source, allow_partial=request.partial, token=request.token)
