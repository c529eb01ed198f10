"""What `tailrace check` is given, told apart by its content: a log, a command line, a model's file, a list of options.

Logs are streamed: memory is a piece and a line, however long the file is.
"""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from tailrace.engines.flags.command_line import (
    CommandLine,
    engine_of_image,
    parse_command,
    parse_words,
    split_words,
)
from tailrace.engines.flags.given import read_words
from tailrace.engines.flags.help_text import parse_help
from tailrace.engines.flags.option import OptionTable
from tailrace.engines.flags.start_log import StartLog, feed_bytes
from tailrace.engines.flags.text_format import parse_text_format
from tailrace.engines.flags.triton_model import TritonModel, triton_model
from tailrace.gateway.config import Config
from tailrace.gateway.plain_yaml import size_of
from tailrace.measure.dialect import UNREADABLE
from tailrace.model.errors import InputError
from tailrace.store.run_file import is_run_file

_HEAD: Final = 8192
_PIECE: Final = 256 * 1024
_LARGEST_TEXT: Final = 4 * 1024 * 1024
"""Of files that are read whole: commands, configurations, help texts."""
_MOST_VALUES: Final = 10_000
"""In one option of a YAML file, each as often as aliases repeat it: in a text each repetition takes its own memory."""
_HELP_TIMEOUT_S: Final = 120.0
_REMEDY: Final = (
    "Give an engine's or a gateway's address, an engine's log, a file with its command line (or a container's YAML), a "
    "Triton config.pbtxt, a saved scrape of /metrics, an engine's --help text, a tailrace.yaml, or a run file."
)
_CONFIG_KEYS: Final = frozenset(Config.__struct_fields__) - {"workers"}
"""A gateway's keys; `workers` may be an engine's option, too, and so decides nothing."""
_HELP_ARGUMENTS: Final = {"vllm": ("serve", "--help=all")}


class Kind(StrEnum):
    """What a source is."""

    URL = "url"
    LOG = "log"
    COMMAND = "command"
    COMMAND_LINE = "command_line"
    """Not a file with one, but the line itself."""
    CONTAINER = "container"
    TRITON = "triton"
    HELP = "help"
    CONFIG = "config"
    LENGTHS = "lengths"
    MODEL = "model"
    SCRAPE = "scrape"


_BY_SUFFIX: Final = {
    ".pbtxt": Kind.TRITON,
    ".sh": Kind.COMMAND,
    ".service": Kind.COMMAND,
    ".cmd": Kind.COMMAND,
}


def is_url(source: str) -> bool:
    """Whether `source` is an address."""
    return source.startswith(("http://", "https://"))


def kind_of(source: str) -> Kind:
    """Tell what `source` is. InputError for what does not exist, is empty, or is nothing that is known."""
    if is_url(source):
        return Kind.URL
    if source == "-":
        return Kind.LOG
    if _is_command_line(source):
        return Kind.COMMAND_LINE
    path = Path(source)
    if path.is_dir():
        return Kind.TRITON if any(path.glob("*/config.pbtxt")) or (path / "config.pbtxt").exists() else Kind.LENGTHS
    text = "" if is_run_file(_begin(path)) else read_head(path).decode("utf-8", "replace")
    if path.suffix in {".yaml", ".yml"}:
        return _kind_of_yaml(path)
    return _BY_SUFFIX.get(path.suffix) or _kind_of_text(path, text)


def _is_command_line(source: str) -> bool:
    """Whether these are the words of a command that names an engine, and no file's name."""
    if len(source.split()) < 2:
        return False
    try:
        return bool(parse_command(source).engine) and not Path(source).exists()
    except InputError:
        return False
    except OSError:  # longer than any file's name
        return True


def _kind_of_text(path: Path, head: str) -> Kind:
    """`head` is empty for a run file, which is none."""
    start = head.lstrip()
    if not head or (start.startswith("{") and '"request_id"' in head):
        return Kind.LENGTHS
    if path.suffix == ".json" and '"num_hidden_layers"' in read_text(path):
        return Kind.MODEL
    if start.startswith(("# HELP ", "# TYPE ")):
        return Kind.SCRAPE
    if start.lower().startswith("usage:") or _looks_like_help(path, head):
        return Kind.HELP
    return Kind.COMMAND if _looks_like_command(head, path) else Kind.LOG


def _begin(path: Path) -> bytes:
    """A regular file's first bytes; none where it cannot be read, which `read_head` then says."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return b""
        with path.open("rb") as file:
            return file.read(64)
    except OSError:
        return b""


def read_head(path: Path) -> bytes:
    """The first bytes of a text file. InputError where it is not there, empty, or no text."""
    place = str(path)
    try:
        # A pipe without a writer would hold the opening of it for ever, and what is read of one cannot be read again.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError("this is no regular file", place=place, remedy="Send what it holds to standard input: -")
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except FileNotFoundError:
        raise InputError("there is no such file", place=place, remedy=_REMEDY) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", place=place, remedy=_REMEDY) from None
    if not head.strip():
        raise InputError("the file is empty", place=place, remedy=_REMEDY)
    if b"\0" in head:
        raise InputError("this is no text but a binary file", place=place, remedy=_REMEDY)
    return head


def read_text(path: Path) -> str:
    """A text file that is read whole. InputError as `read_head`, and where it is too long for what it should be."""
    read_head(path)
    with path.open("rb") as file:
        whole = file.read(_LARGEST_TEXT + 1)
    if len(whole) > _LARGEST_TEXT:
        raise InputError("the file is too long for what it should be", place=str(path), remedy=_REMEDY)
    return whole.decode("utf-8", "replace")


def _looks_like_help(path: Path, head: str) -> bool:
    if "\n  -" not in head and "\n-" not in head and "\n      --" not in head:
        return False
    table = parse_help(read_text(path)) if path.stat().st_size <= _LARGEST_TEXT else None
    return table is not None and len(table) >= 20


def _looks_like_command(head: str, path: Path) -> bool:
    if path.stat().st_size > _HEAD or " INFO " in head:
        return False
    try:
        return bool(parse_command(head).engine)
    except InputError:
        return False


def _yaml(path: Path) -> list[Any]:
    import yaml  # noqa: PLC0415  (only when a file is used)

    try:
        return list(yaml.safe_load_all(read_text(path)))
    except (yaml.YAMLError, RecursionError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = f":{line + 1}" if line is not None else ""
        raise InputError("this is no YAML", place=f"{path}{where}", remedy=_REMEDY) from None


def _kind_of_yaml(path: Path) -> Kind:
    documents = _yaml(path)
    if any(isinstance(one, Mapping) and _CONFIG_KEYS & set(one) for one in documents):
        return Kind.CONFIG
    if any(_containers(one) for one in documents):
        return Kind.CONTAINER
    # vLLM and SGLang read their options from such a file too (--config).
    if any(isinstance(one, Mapping) for one in documents):
        return Kind.COMMAND
    raise InputError("this YAML is no configuration that is known", place=str(path), remedy=_REMEDY)


def _containers(node: Any, seen: set[int] | None = None) -> list[tuple[str, list[str], str]]:
    """(name, words, image) of every container of a known engine in a Kubernetes or compose document.

    What an alias repeats is looked at once: a file of a few lines can stand for a tree without end.
    """
    out: list[tuple[str, list[str], str]] = []
    seen = set() if seen is None else seen
    if id(node) in seen:
        return out
    if isinstance(node, Mapping | list):
        seen.add(id(node))
    if isinstance(node, Mapping):
        image = node.get("image")
        if isinstance(image, str):
            words = [*_words(node.get("entrypoint")), *_words(node.get("command")), *_words(node.get("args"))]
            if engine_of_image(image) or parse_words(words).engine:
                words = [*_environment(node.get("env") or node.get("environment")), *words]
                out.append((_text(node.get("name") or node.get("container_name") or image), words, image))
        for value in node.values():
            out += _containers(value, seen)
    elif isinstance(node, list):
        for value in node:
            out += _containers(value, seen)
    return out


def _text(value: Any, *, json: bool = False) -> str:
    """`value` as a word. InputError where its aliases repeat it without measure: text has no aliases."""
    try:
        fits = size_of(value, {}) <= _MOST_VALUES
    except RecursionError:
        fits = False
    if not fits:
        raise InputError(
            f"an option has more than {_MOST_VALUES} values", place="YAML", remedy="Write it without aliases."
        )
    return msgspec.json.encode(value, enc_hook=str).decode() if json else str(value)


def _environment(value: Any) -> list[str]:
    """`env` of Kubernetes (names and values) or `environment` of compose (a mapping or `A=b`), as assignments."""
    if isinstance(value, Mapping):
        return [f"{name}={_text(text)}" for name, text in value.items()]
    out = []
    for one in value if isinstance(value, list) else []:
        if isinstance(one, str) and "=" in one:
            out.append(one)
        elif isinstance(one, Mapping) and "value" in one:
            out.append(f"{_text(one.get('name'))}={_text(one['value'])}")
    return out


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return split_words(value, place="command")
    if not isinstance(value, list):
        return []
    words = [_text(one) for one in value]
    if len(words) >= 2 and words[-2] in {"-c", "-lc", "-ec"}:
        return split_words(words[-1], place="args")  # `bash -c "vllm serve …"`
    if words and words[0] in {"-c", "-lc"}:
        return split_words(words[1] if len(words) > 1 else "", place="args")
    if len(words) == 1 and " " in words[0]:
        return split_words(words[0], place="args")
    return words


def read_containers(path: Path, helped: OptionTable | None) -> list[tuple[str, CommandLine]]:
    """(container's name, its command line) of every engine in a Kubernetes or compose file."""
    found = []
    for document in _yaml(path):
        for name, given, image in _containers(document):
            # `bash -c` as the command, the rest as its argument.
            words = [word for word in given if word.rpartition("/")[2] not in {"bash", "sh", "-c", "-lc"}]
            found.append((name, read_words(words, helped=helped, image=image)))
    return found


def options_file_words(path: Path) -> list[str]:
    """An engine's own YAML of options (`--config`), as words of a command line."""
    words: list[str] = []
    for document in _yaml(path):
        if not isinstance(document, Mapping):
            continue
        for key, value in document.items():
            name = f"--{key}"
            if value is True:
                words.append(name)
            elif isinstance(value, list):
                words += [name, *map(_text, value)]
            elif isinstance(value, Mapping):
                words += [name, _text(value, json=True)]
            elif value is not None and value is not False:
                words += [name, _text(value)]
    return words


def read_log(source: str) -> StartLog:
    """Read an engine's log; `-` is standard input."""
    if source == "-":
        log = StartLog("stdin")
        _feed(log, sys.stdin.buffer)
        if not log.lines:
            raise InputError(
                "nothing came in", place="stdin", remedy="For example: docker logs vllm 2>&1 | tailrace check -"
            )
        return log
    path = Path(source)
    read_head(path)
    log = StartLog(path.name)
    with path.open("rb") as file:
        _feed(log, file)
    return log


def _feed(log: StartLog, file: BinaryIO) -> None:
    feed_bytes(log, lambda: file.read(_PIECE))


def read_models(source: str) -> list[TritonModel]:
    """Triton's models: one `config.pbtxt`, or every model of a repository."""
    path = Path(source)
    files = [path]
    if path.is_dir():
        files = sorted(path.glob("*/config.pbtxt"))
        if (path / "config.pbtxt").exists():
            files.append(path / "config.pbtxt")
    out = []
    for file in files:
        said = parse_text_format(read_text(file), place=str(file))
        if not {"name", "backend", "platform", "max_batch_size", "input", "output", "ensemble_scheduling"} & set(said):
            raise InputError("this is no Triton model's configuration", place=str(file), remedy=_REMEDY)
        out.append(triton_model(said, source=str(file), name=file.parent.name))
    return out


def read_help(source: str, *, engine: str = "") -> OptionTable:
    """An engine's `--help`, saved in a file."""
    table = parse_help(read_text(Path(source)), engine=engine, source=f"--help in {source}")
    if table is None:
        raise InputError(
            "no options are listed there",
            place=source,
            remedy="Save the engine's whole help: vllm serve --help=all > help.txt",
        )
    return table


def run_help(command: str) -> OptionTable:
    """The `--help` of an installed engine: `vllm` (which means `vllm serve --help=all`), or any command line.

    InputError where the program is not there, fails, or lists no options.
    """
    words = split_words(command, place="--help-of")
    if not words:
        raise InputError("no program is named", place="--help-of", remedy="For example --help-of vllm.")
    program = words[0].rpartition("/")[2]
    if len(words) == 1:
        words += _HELP_ARGUMENTS.get(program, ("--help",))
    place = f"--help-of {command}"
    try:
        done = subprocess.run(  # noqa: S603  (the user named the program)
            words, capture_output=True, check=False, timeout=_HELP_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise InputError(
            f"there is no program {words[0]!r}",
            place=place,
            remedy="Give its path, or its saved help with --help-text.",
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(
            f"did not answer: {error}", place=place, remedy="Save its help and give --help-text."
        ) from None
    table = parse_help(done.stdout.decode("utf-8", "replace"), source=f"`{' '.join(words)}`")
    if table is None:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
        raise InputError(
            f"lists no options (exit code {done.returncode}{': ' + last if last else ''})",
            place=place,
            remedy="Name the whole command that prints them, for example --help-of 'vllm serve --help=all'.",
        )
    return table


def read_model_config(source: str) -> Mapping[str, Any]:
    """A model's `config.json`."""
    try:
        said = msgspec.json.decode(read_text(Path(source)).encode())
    except UNREADABLE as error:
        raise InputError(f"this is no JSON: {error}", place=source, remedy="Give the model's config.json.") from None
    if not isinstance(said, dict):
        raise InputError("this is no JSON object", place=source, remedy="Give the model's config.json.")
    return said
