"""The command line that starts an engine, as people paste it: with an environment, a launcher or a container around it.

`parse_command("docker run --gpus all vllm/vllm-openai:v0.11.0 --model m --max-num-seqs 256")` knows the engine, its
version from the image's tag, and every option with its value. Nothing is ever executed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from tailrace.engines.flags.option import OptionTable, Takes
from tailrace.model.errors import InputError

PLACE: Final = "--command"

_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
_END: Final = frozenset({"&&", "||", ";", "|", "&"})
_REDIRECT: Final = re.compile(r"\d?>{1,2}|\d?<|&>")
_IMAGES: Final = (
    ("vllm", re.compile(r"vllm[-/]|/vllm(?:[:@]|$)")),
    ("sglang", re.compile(r"lmsysorg/sglang|/sglang[:@-]")),
    ("llamacpp", re.compile(r"llama\.cpp")),
    ("tgi", re.compile(r"text-generation-inference")),
    ("triton", re.compile(r"tritonserver")),
    ("tensorrt_llm", re.compile(r"tensorrt-?llm", re.IGNORECASE)),
)
_RUNNERS: Final = frozenset({"docker", "podman", "nerdctl"})
_MODULES: Final = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm",
    "sglang.launch_server": "sglang",
    "sglang_router.launch_server": "sglang",
    "tensorrt_llm.commands.serve": "tensorrt_llm",
}
_PROGRAMS: Final = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llama-server": "llamacpp",
    "text-generation-launcher": "tgi",
    "tritonserver": "triton",
    "trtllm-serve": "tensorrt_llm",
}
_NEED_VERB: Final = frozenset({"vllm", "sglang"})
_NAMING: Final = frozenset({"-v", "--volume", "--name", "-e", "--env", "-w", "--workdir", "--mount"})
"""Options of container runners whose value may look like an image's name."""
_VERBS: Final = {"vllm": "serve", "sglang": "serve", "tensorrt_llm": "serve"}
_UNIT: Final = re.compile(r"^[^\S\n]*ExecStart=[-@:+!|]*", re.MULTILINE)
"""What stands before the command in a systemd unit."""
_GOES_ON: Final = re.compile(r"\s*-")
_OPTION: Final = re.compile(r"--?[A-Za-z]")


class _Place(NamedTuple):
    engine: str
    program: str
    start: int
    version: str = ""


class Given(msgspec.Struct, frozen=True):
    """One option as it was given."""

    name: str
    """As it was spelled, dashes included, without its value."""
    value: str | None = None
    joined: bool = False
    """Spelled `--name=value`."""
    stray: str | None = None
    """A word behind an option that takes none: the engine reads it as something else, and mostly refuses it."""

    @property
    def words(self) -> str:
        """As it stood on the command line."""
        if self.value is not None:
            return f"{self.name}{'=' if self.joined else ' '}{self.value}"
        return f"{self.name} {self.stray}" if self.stray is not None else self.name


class CommandLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a command line says."""

    engine: str = ""
    """`vllm`, `sglang`, `llamacpp`, `tgi`, `triton`, `trtllm`, or empty where no known program is named."""
    program: str = ""
    version: str = ""
    """From the tag of a container's image."""
    environment: dict[str, str] = {}
    options: tuple[Given, ...] = ()
    words: tuple[str, ...] = ()
    """Words that belong to no option: the model of `vllm serve`."""
    image: str = ""

    def last(self, *names: str) -> Given | None:
        """The last option with one of these spellings; engines take the last."""
        return next((given for given in reversed(self.options) if given.name in names), None)


def _commands_apart(text: str) -> str:
    """Line ends outside quotes become `;`, comments go; a line that begins with an option continues the one before."""
    out: list[str] = []
    quote, word_begins, at = "", True, 0
    while at < len(text):
        letter = text[at]
        if quote:
            if letter == "\\" and quote == '"':
                out.append(text[at : at + 2])
                at += 2
                continue
            quote = "" if letter == quote else quote
        elif letter == "\\":
            out.append(text[at : at + 2])
            at, word_begins = at + 2, False
            continue
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and word_begins:
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            continue
        elif letter == "\n" and not _GOES_ON.match(text, at):
            letter = " ; "
        out.append(letter)
        word_begins = letter.isspace() or letter == " ; "
        at += 1
    return "".join(out)


def split_words(text: str, *, place: str = PLACE) -> list[str]:
    """Words as a shell would split them. InputError for a quote that does not close."""
    joined = re.sub(r"\\\r?\n", " ", text).replace("\r", " ")
    try:
        return shlex.split(_commands_apart(_UNIT.sub("", joined)))
    except ValueError as error:
        raise InputError(
            f"cannot be split into words: {error}",
            place=place,
            remedy="Quote the command line once more, for example in single quotes.",
        ) from None


def parse_command(text: str, *, table: OptionTable | None = None, place: str = PLACE) -> CommandLine:
    """Read a command line. `table` tells which options take a value; without it, a word that follows is one."""
    return parse_words(split_words(text, place=place), table=table)


def engine_of_image(image: str) -> str:
    """The engine in a container image's name; empty where none is known."""
    return next((name for name, pattern in _IMAGES if pattern.search(image)), "")


def parse_words(words: Sequence[str], *, table: OptionTable | None = None, image: str = "") -> CommandLine:
    """Read words: a command line already split, or the `args` of a container whose image is `image`."""
    environment: dict[str, str] = {}
    engine, program, start = engine_of_image(image), image, 0
    version = _tag(image)
    for segment in _segments(words):
        found = _locate(segment, environment)
        if found is not None:
            engine, program, start = found.engine, found.program, found.start
            version = found.version or version
            words = segment
            break
    else:
        words = next(iter(_segments(words)), [])
        while start < len(words) and _ASSIGNMENT.match(words[start]):
            name, _, value = words[start].partition("=")
            environment[name] = value
            start += 1
    options, rest = _options(words[start:], table)
    return CommandLine(
        engine=engine,
        program=program,
        version=version,
        environment=environment,
        options=tuple(options),
        words=tuple(rest),
        image=program if version or image else "",
    )


def _segments(words: Sequence[str]) -> list[list[str]]:
    """The commands in a line of several, without redirections."""
    out: list[list[str]] = [[]]
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in _END:
            out.append([])
        elif _REDIRECT.match(word) and not word.startswith("<<<"):
            skip = _REDIRECT.fullmatch(word) is not None
        else:
            out[-1].append(word.removesuffix(";"))
            if word.endswith(";") and len(word) > 1:
                out.append([])
    return [segment for segment in out if segment]


def _tag(image: str) -> str:
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    return tag if any(letter.isdigit() for letter in tag) else ""


def _locate(words: Sequence[str], environment: dict[str, str]) -> _Place | None:
    """Where the engine's program stands in one command, and where its arguments begin."""
    if any(word.rpartition("/")[2] in _RUNNERS for word in words[:4]):
        return _contained(words, environment)
    for index, word in enumerate(words):
        if _ASSIGNMENT.match(word):
            key, _, value = word.partition("=")
            environment.setdefault(key, value)
            continue
        module = word[2:] if word.startswith("-m") else ""
        after = index + 1
        if word == "-m" and after < len(words):
            module, after = words[after], after + 1
        if module in _MODULES:
            return _Place(_MODULES[module], module, after)
        place = _program(words, index)
        if place is not None:
            return place
    return None


def _program(words: Sequence[str], index: int) -> _Place | None:
    """The engine whose program is `words[index]`; some need a verb behind it, which others may leave out."""
    name = words[index].rpartition("/")[2]
    engine = _PROGRAMS.get(name)
    if engine is None:
        return None
    after = index + 1
    verb = _VERBS.get(engine)
    named = after < len(words) and words[after] == verb
    if verb is not None and not named and engine in _NEED_VERB:
        return None
    return _Place(engine, name, after + named)


def _contained(words: Sequence[str], environment: dict[str, str]) -> _Place | None:
    """The engine of a container's image; what follows the image are its arguments, or a command of its own."""
    for index, word in enumerate(words):
        plain = word.removeprefix("--env=").removeprefix("-e") if word.startswith(("--env=", "-e")) else word
        if _ASSIGNMENT.match(plain):
            key, _, value = plain.partition("=")
            environment.setdefault(key, value)
            continue
        before = words[index - 1] if index else ""
        engine = engine_of_image(word)
        if not engine or word.startswith("-") or before in _NAMING:
            continue
        inner = _locate(words[index + 1 :], environment)
        if inner is None:
            return _Place(engine, word, index + 1, _tag(word))
        return inner._replace(start=index + 1 + inner.start, version=inner.version or _tag(word))
    return None


def _is_option(word: str) -> bool:
    return _OPTION.match(word) is not None


def _options(words: Sequence[str], table: OptionTable | None) -> tuple[list[Given], list[str]]:
    options: list[Given] = []
    rest: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if word == "--":
            rest += words[index:]
            break
        if not _is_option(word):
            if options and options[-1].value is None and options[-1].stray is None and index >= 2:
                options[-1] = msgspec.structs.replace(options[-1], stray=word)
            else:
                rest.append(word)
            continue
        name, equals, value = word.partition("=")
        if equals:
            options.append(Given(name, value, joined=True))
            continue
        found = table.find(name) if table is not None else None
        takes = Takes.VALUE if found is None else found.option.takes
        if found is not None and (found.negated or takes in {Takes.NOTHING, Takes.SWITCH}):
            options.append(Given(name))
        elif index < len(words) and not _is_option(words[index]):
            # A negative number is a value: `--chunked-prefill-size -1`.
            taken = [words[index]]
            index += 1
            while takes is Takes.VALUES and index < len(words) and not _is_option(words[index]):
                taken.append(words[index])
                index += 1
            options.append(Given(name, " ".join(taken)))
        else:
            options.append(Given(name))
    return options, rest
