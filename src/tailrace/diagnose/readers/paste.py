"""A paste: an issue with fences, tables, logs, commands, sentences. Each block goes to the reader of its format."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import msgspec

from tailrace.diagnose.observed import Arm, Observed, Understood
from tailrace.diagnose.observed.moved import moved
from tailrace.diagnose.readers.binary import binary_words
from tailrace.diagnose.readers.encodings import encoding_of
from tailrace.diagnose.readers.grids import Line
from tailrace.diagnose.readers.html_tables import with_pipes
from tailrace.diagnose.readers.paste_blocks import Block, BlockKind, blocks_of, is_mixed
from tailrace.diagnose.readers.roles import with_roles
from tailrace.diagnose.readers.source import Decode, Kind, Source, read_source
from tailrace.diagnose.readers.text import observed_text
from tailrace.model.errors import InputError

__all__ = ["MOST_BYTES", "is_paste", "read_paste"]

MOST_BYTES: Final = 256 << 20
"""A paste is held in memory; a larger one is a log: give it as a file."""
MOST_TEXT: Final = 4_000
"""Lines between the blocks that are looked at for tables and rows: an issue of fifty pages."""
MOST_READ: Final = 100
"""Blocks that are tried with the readers of formats."""
_HEAD: Final = 1 << 16
_TEXTS: Final = frozenset({"", ".txt", ".md", ".markdown", ".out"})


def is_paste(path: Path) -> bool:
    """Whether a file is a text that mixes formats."""
    if path.suffix.lower() not in _TEXTS:
        return False
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False  # whoever reads it says what is wrong with it
    encoding = encoding_of(head)
    if encoding is not None:
        return is_mixed(head.decode(encoding, "replace"))
    return b"\0" not in head and is_mixed(head.decode("utf-8-sig", "replace"))


def read_paste(data: bytes, name: str, decode: Decode) -> list[Source]:
    """The sources in a paste: one a block that is evidence of its own, and one for what people wrote between.

    InputError when it is empty or too large. Blocks that no reader takes are listed as not understood.
    """
    if len(data) > MOST_BYTES:
        raise InputError(
            f"it has {len(data) / 2**20:.0f} MiB; a paste has up to {MOST_BYTES >> 20}", place=name, remedy="Save it."
        )
    encoding = encoding_of(data)
    binary = binary_words(data[:_HEAD]) if encoding is None else None
    if binary is not None:
        raise InputError(binary[0], place=name, remedy=binary[1])
    text = data.decode(encoding or "utf-8-sig", "replace")
    if not text.strip():
        raise InputError("there is nothing in it", place=name, remedy="Pipe or paste a log, a table, an issue.")
    lines: list[Line] = list(enumerate(text.split("\n"), start=1))
    if "\r" in text:
        lines = [(number, line.removesuffix("\r")) for number, line in lines]
    if "<tr" in text or "<TR" in text:
        lines = with_pipes(lines)
    blocks = blocks_of(lines)
    out: list[Source] = []
    budget = _Budget(MOST_TEXT, MOST_TEXT, MOST_READ)
    with tempfile.TemporaryDirectory(prefix="tailrace-paste-") as folder:
        path = Path(folder) / name.rsplit("/", maxsplit=1)[-1]
        for number, block in enumerate(blocks):
            out += _sources(block, path, name, decode, number, budget)
    return _roles(out)


class _Budget(msgspec.Struct):
    """What may still be done: a paste is answered at once, however it is cut."""

    told: int
    """Lines of what people write that are looked at for tables and rows."""
    lines: int
    """Lines of other blocks that are looked at for the same."""
    blocks: int
    """Blocks that are tried with the readers of formats."""


def _sources(block: Block, path: Path, name: str, decode: Decode, number: int, budget: _Budget) -> list[Source]:
    if block.kind is BlockKind.TEXT:
        return [_as_text(block, name, path.name, budget)]
    budget.blocks -= 1
    read = _read(block, path, name, decode, number) if budget.blocks >= 0 else None
    if block.kind is BlockKind.FENCE and budget.blocks > 0 and (read is None or _missed(read)):
        # Not one thing, or not only: a command with its output, two scrapes, a log between sentences.
        inner = blocks_of(block.lines)
        if len(inner) > 1 or (read is None and inner[0].kind is not BlockKind.TEXT):
            return [
                one
                for place, part in enumerate(inner)
                for one in _sources(part, path, name, decode, number * 1000 + place, budget)
            ]
    if read is None:
        return [_as_text(block, name, path.name, budget)]
    if block.kind is BlockKind.FENCE and read.aggregate is not None:
        # A printed result takes the whole block, and knows its own rows: what the engine logged among them is read too.
        logs = [part for part in blocks_of(block.lines) if part.kind is BlockKind.LOG]
        logged = {number for part in logs for number, _ in part.lines}
        rest = [line for line in block.lines if line[0] not in logged]
        again = _read(msgspec.structs.replace(block, lines=rest), path, name, decode, number) if logs and rest else None
        return [
            again or read,
            *(
                one
                for place, part in enumerate(logs)
                for one in _sources(part, path, name, decode, number * 1000 + place, budget)
            ),
        ]
    return [read]


def _missed(read: Source) -> bool:
    """Whether a reader left more than a third of a block."""
    counts = [] if read.observed is None else read.observed.understood
    return sum(one.understood for one in counts) < 0.67 * sum(one.total for one in counts)


def _read(block: Block, path: Path, name: str, decode: Decode, number: int) -> Source | None:
    """The block as its format's reader has it; `None` where none knows it."""
    path.write_text("\n".join(text for _, text in block.lines) + "\n", encoding="utf-8")
    try:
        read = read_source(str(path), decode, at_ns=number, together=True)
    except InputError:
        return None
    first = block.lines[0][0]
    observed = None if read.observed is None else _named(moved(read.observed, first - 1), block.caption, path.name)
    notes = [note.replace(str(path), name) for note in read.notes]
    return msgspec.structs.replace(read, name=name, observed=observed, notes=notes)


def _as_text(block: Block, name: str, source: str, budget: _Budget) -> Source:
    """What people write; of a block that no reader knew as a whole, whatever it holds."""
    observed = Observed()
    if block.kind is BlockKind.TEXT and budget.told > 0:
        observed = observed_text(block.lines, source, most=budget.told)
        budget.told -= len(block.lines)
    elif block.kind in {BlockKind.FENCE, BlockKind.COLUMNS} and budget.lines > 0 and budget.blocks >= 0:
        observed = observed_text(block.lines, source, most=budget.lines)
        budget.lines -= len(block.lines)
    if block.kind is not BlockKind.TEXT and not (observed.arms or observed.settings):
        total = sum(1 for _, text in block.lines if text.strip())
        line, text = block.lines[0]
        observed = Observed(
            notes=observed.notes,
            understood=[
                Understood(
                    source=source, format=f"{block.kind} of no known format", understood=0, total=total,
                    examples=[f"{line}: {text.strip()[:80]}"],
                )
            ],
        )  # fmt: skip
    return Source(name=name, kind=Kind.OBSERVED, observed=_named(observed, block.caption, source))


def _named(observed: Observed, caption: str, source: str) -> Observed:
    """A block of one arm that nothing names is called as the line above it."""
    stem = source.rsplit(".", maxsplit=1)[0]
    if caption and len(observed.arms) == 1 and observed.arms[0].name in {stem, source, "table"}:
        observed.arms = [msgspec.structs.replace(observed.arms[0], name=caption, label=caption)]
    return observed


def _roles(sources: list[Source]) -> list[Source]:
    """Blocks of one arm each are told apart by the words above them: before and after."""
    holders = [source for source in sources if source.observed is not None and len(source.observed.arms) == 1]
    arms: list[Arm] = [source.observed.arms[0] for source in holders if source.observed is not None]
    for source, arm in zip(holders, with_roles(arms), strict=True):
        if source.observed is not None:
            source.observed.arms = [arm]
    return sources
