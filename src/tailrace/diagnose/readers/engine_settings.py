"""Engines' command lines and Triton's model files: their options as settings, under the names of engines' facts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tailrace.diagnose.configured.engine_options import ADVICE
from tailrace.diagnose.observed import Event, Observed, Place, Setting, Understood
from tailrace.diagnose.readers.bench_command import commands_in
from tailrace.diagnose.readers.format import Format
from tailrace.engines.advice.case import Case
from tailrace.engines.advice.judge import judge
from tailrace.engines.facts import EngineFacts
from tailrace.engines.flags.command_line import CommandLine, parse_command, split_words
from tailrace.engines.flags.given import command_facts, read_words
from tailrace.engines.flags.tables import option_table
from tailrace.engines.flags.text_format import parse_text_format
from tailrace.engines.flags.triton_model import triton_model
from tailrace.model.errors import InputError

__all__ = ["ENGINE_COMMAND", "TRITON_MODEL", "advice_on", "settings_of_words", "split_line"]

_COMMAND: Final = "engine command line"
_MODEL: Final = "Triton model configuration"
_LARGEST: Final = 256 << 10
_MOST_WORDS: Final = 1_000
"""Of a command line: an engine has some three hundred options; one that it does not know is looked for among them."""
_PROGRAMS: Final = re.compile(
    r"\bvllm\s+serve\b|vllm\.entrypoints|sglang\.launch_server|\bsglang\s+serve\b|\bllama-server\b|\btritonserver\b|"
    r"text-generation-launcher|trtllm-serve|vllm/vllm-openai|lmsysorg/sglang|text-generation-inference:"
)
_LOG: Final = re.compile(
    r"\b(?:INFO|WARNING|DEBUG|ERROR)\b.{0,40}\[\w+\.py:\d+\]|^\[?\d{4}-\d\d-\d\d[ T]\d\d:|"
    r"^(?:slot +\w+: id |srv +\w+: |prompt eval time =)",
    re.MULTILINE,
)
_CAPACITY: Final = re.compile(r"KV cache size:\s*([\d,]{1,20})\s*tokens")
_TRITON: Final = re.compile(
    r"^[^\S\n]*(?:max_batch_size\s*:|dynamic_batching\s*\{|instance_group\s*[\[{:]|platform\s*:\s*\"|backend\s*:\s*\")",
    re.MULTILINE,
)


def settings_of_words(
    words: Sequence[str],
    *,
    source: str,
    line: int,
    image: str = "",
    scope: str = "",
    lines: Mapping[str, int] | None = None,
) -> list[Setting]:
    """The options of a command line that is split already; secrets are none. `lines`: option -> its line."""
    engine, options = _told(tuple(words), image)
    if not engine:
        return []
    known = lines or {}
    title = scope or engine
    return [
        Setting(name="engine", value=engine, scope=title, place=Place(source, line)),
        *(
            Setting(name=key, value=value, scope=title, place=Place(source, known.get(option, line)))
            for key, value, option in options
        ),
    ]


@lru_cache(maxsize=64)
def _told(words: tuple[str, ...], image: str) -> tuple[str, list[tuple[str, Any, str]]]:
    """(the engine of a command line, what its options set: name, value, option). Remembered: a manifest starts the same
    engine many times.
    """
    command = read_words(words, image=image)
    if not command.engine:
        return "", []
    facts = command_facts(command, option_table(command.engine))
    return command.engine, [(key, fact.value, fact.source.rpartition(": ")[2]) for key, fact in facts.items()]


def split_line(line: bytes) -> list[str]:
    """The words of one line that starts an engine, without a prompt's sign; none where its quotes do not close."""
    text = line.decode("utf-8", "replace").strip().lstrip("$%#> ")
    try:
        return split_words(text, place="the command")[:_MOST_WORDS]
    except InputError:
        return []


def advice_on(command: CommandLine, *, source: str, line: int, lines: Mapping[str, int]) -> list[Event]:
    """What `tailrace check` says of a command line, for the rules on engine options."""
    table = option_table(command.engine)
    facts = EngineFacts(command_facts(command, table))
    case = Case(name=source, engine=command.engine, facts=facts, command=command, table=table)
    return _advised(case, source=source, line=line, lines=lines)


def _advised(case: Case, *, source: str, line: int, lines: Mapping[str, int]) -> list[Event]:
    return [
        Event(
            kind=ADVICE,
            text=one.statement,
            attributes={
                "code": one.code,
                "weight": str(one.weight),
                "subject": one.subject,
                "facts": "; ".join(item.text for item in one.evidence),
                "advice": one.advice,
                "price": one.price,
                "verify": one.verify,
            },
            place=Place(source, lines.get(one.subject, line)),
        )
        for one in judge(case)
    ]


def _matches_command(head: str, name: str) -> bool:
    start = head.lstrip()
    if start[:1] in {"{", "[", "|", "<"} or name.endswith((".py", ".yaml", ".yml", ".md", ".csv")):
        return False
    if len(head) > _LARGEST or not _PROGRAMS.search(head) or _LOG.search(head):
        return False
    try:
        return bool(parse_command(head).engine)
    except InputError:
        return False


def _read_command(path: Path, name: str) -> Observed:
    with path.open("rb") as file:
        text = file.read(_LARGEST).decode("utf-8-sig", "replace")
    # The load test's own command often stands below the engine's: its options are none of the engine.
    tested, left = commands_in(list(enumerate(text.splitlines(), start=1)), name)
    if tested:
        kept = dict(left)
        text = "\n".join(kept.get(at, "") for at in range(1, text.count("\n") + 2))
    words = split_words(text, place=str(path))
    beyond, words = words[_MOST_WORDS:], words[:_MOST_WORDS]
    number: dict[str, int] = {}
    for at, line in enumerate(text.splitlines(), start=1):
        for option in re.findall(r"(?<!\S)--?[A-Za-z][\w.-]*", line):
            number.setdefault(option, at)
    first = next((at for at, line in enumerate(text.splitlines(), start=1) if _PROGRAMS.search(line)), 1)
    settings = settings_of_words(words, source=name, line=first, lines=number)
    if not settings:
        raise InputError("no engine is started in it", place=str(path), remedy="Give the line that starts the engine.")
    printed = _CAPACITY.search(text)
    if printed is not None:
        at = text.count("\n", 0, printed.start()) + 1
        value = float(printed[1].replace(",", ""))
        settings.append(Setting(name="kv_capacity_tokens", value=value, unit="tokens", place=Place(name, at)))
    return Observed(
        settings=[*settings, *tested],
        events=advice_on(read_words(words), source=name, line=first, lines=number),
        understood=[
            Understood(source=name, format=_COMMAND, understood=len(settings), total=len(settings), what="options"),
            *([_cut(name, beyond)] if beyond else []),
        ],
    )


def _cut(name: str, beyond: list[str]) -> Understood:
    """What is said of a command line that is longer than any."""
    return Understood(
        source=name,
        format=f"{_COMMAND}: too long, give the one that starts the engine",
        understood=_MOST_WORDS,
        total=_MOST_WORDS + len(beyond),
        what="words",
        examples=[beyond[0][:80]],
    )


def _matches_triton(head: str, name: str) -> bool:
    return name.endswith(".pbtxt") or (
        head.lstrip()[:1] not in {"{", "[", "|", "<"}
        and not name.endswith((".yaml", ".yml", ".md"))
        and len(_TRITON.findall(head)) >= 2
    )


def _read_triton(path: Path, name: str) -> Observed:
    with path.open("rb") as file:
        text = file.read(_LARGEST).decode("utf-8-sig", "replace")
    model = triton_model(parse_text_format(text, place=str(path)), source=name, name=path.parent.name)
    scope = f"model {model.name}"
    out = [Setting(name="engine", value="triton", scope=scope, place=Place(name, 1))]
    marks = {
        "max_batch_size": "max_batch_size",
        "instances": "instance_group",
        "batch_delay_us": "max_queue_delay_microseconds",
        "preferred_batch_sizes": "preferred_batch_size",
        "max_queued": "max_queue_size",
        "decoupled": "decoupled",
        "backend": "backend",
        "model": "name",
    }
    for key, fact in model.facts().items():
        out.append(
            Setting(
                name=key,
                value=fact.value,
                unit="us" if key.endswith("_us") else "",
                scope=scope,
                place=Place(name, _line_of(text, marks.get(key, key))),
            )
        )
    case = Case(name=name, engine="triton", facts=EngineFacts(model.facts()), models=[model])
    return Observed(
        settings=out,
        events=_advised(case, source=name, line=1, lines={}),
        understood=[Understood(source=name, format=_MODEL, understood=len(out), total=len(out), what="fields")],
    )


def _line_of(text: str, word: str) -> int:
    found = re.search(rf"\b{re.escape(word)}\b", text)
    return text.count("\n", 0, found.start()) + 1 if found is not None else 1


ENGINE_COMMAND: Final = Format(name=_COMMAND, matches=_matches_command, read=_read_command)
TRITON_MODEL: Final = Format(name=_MODEL, matches=_matches_triton, read=_read_triton)
