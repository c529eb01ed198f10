"""A pasted text is split into blocks of one kind each: fences, logs, scrapes, JSON, tables, and what people write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from tailrace.diagnose.readers.gpu_processes import is_process_row
from tailrace.diagnose.readers.grids import Line
from tailrace.diagnose.readers.prose import is_sentence

__all__ = ["Block", "BlockKind", "blocks_of", "is_mixed"]

_FENCE: Final = re.compile(r"^\s*(?:>\s?)*\s*(`{3,}|~{3,})\s*([\w.+\-]*)")
_QUOTE: Final = re.compile(r"^\s*(?:>\s?)+")
_TAG: Final = re.compile(r"^\s*</?(?:details|summary|pre|code|p|br|b|div|table|tbody)\b[^>]*>\s*$", re.IGNORECASE)
_LOG: Final = re.compile(
    r"^\W{0,3}(?:\S{1,60}\s+\|\s+)?(?:\([A-Za-z][\w ]{0,40}pid=\d+\)\s*)?\W{0,2}"
    r"(?:\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d"
    r"|(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL):?\s+(?:\d\d-\d\d\s|\d{1,3}\.|[\[(]|\d{4}-)"
    r"|(?:\d\d:\d\d:\d\d[^\]\n]{0,30}\]\s*)?(?:Decode|Prefill) batch[.,] #|GIN\] \d{4}/|Engine \d+: Avg prompt"
    r"|(?:\d{1,4}[smhd]){1,3}\s+(?:Warning|Normal)\s+\w+\s+\w+/"
    r"|\d{1,3}(?:\.\d{1,3}){3}\s.{0,40}\[\d{1,2}/\w{3}/\d{4}|[IWEF]\d{4}\s\d\d:\d\d|\w{3} +\d{1,2} \d\d:\d\d:\d\d\s)"
)
_SAMPLE: Final = re.compile(r"^[a-zA-Z_:][\w:]*(?:\{[^{}]*\})?\s+[-+]?(?:\d[\d.eE+\-]*|Inf|NaN)(?:\s+\d+)?\s*$")
_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_HELP: Final = re.compile(r"^# (?:HELP|TYPE|UNIT|EOF)\b")
MOST_BLOCKS: Final = 300
"""More blocks are joined with the last one of their kind: a paste is bounded work, however it is cut."""
MOST_LINES: Final = 200_000
"""So many lines are looked at one by one."""
_MOST_OF_JSON: Final = 200_000
"""Lines of one JSON document; one that never closes ends there."""
_LONG: Final = 4000


class BlockKind(StrEnum):
    """What a block seems to be. Only its reader knows."""

    FENCE = "fence"
    LOG = "log"
    SCRAPE = "scrape"
    JSON = "json"
    LINES = "json lines"
    COLUMNS = "columns"
    TEXT = "text"


class Block(msgspec.Struct, kw_only=True):
    """Lines that belong together."""

    kind: BlockKind
    lines: list[Line]
    caption: str = ""
    """The last line of text before it."""


def is_mixed(head: str) -> bool:
    """Whether the beginning of a text holds more than one kind of thing, or fences."""
    lines = list(enumerate(head.splitlines()[:3000], start=1))
    if ("```" in head or "~~~" in head) and any(_FENCE.match(text) for _, text in lines[:1500] if len(text) < _LONG):
        return True
    blocks = blocks_of(lines)
    kinds = {block.kind for block in blocks if block.kind is not BlockKind.TEXT}
    told = any(block.kind is BlockKind.TEXT and _says(block) for block in blocks)
    return len(kinds | ({BlockKind.TEXT} if told else set())) > 1


def _says(block: Block) -> bool:
    """A text of its own beside a log: a table, or several sentences; not the lines of a traceback."""
    texts = [text for _, text in block.lines if text.strip()]
    if any(map(is_process_row, texts[:400])):
        return True
    return sum(text.lstrip().startswith("|") for text in texts) >= 3 or sum(map(is_sentence, texts)) >= 2


def blocks_of(lines: Sequence[Line]) -> list[Block]:
    """The blocks in their order; all lines of text that stand between the others are one block, the last."""
    out: list[Block] = []
    text: list[Line] = []
    at = 0
    while at < len(lines):
        if at >= MOST_LINES:
            # What comes behind so many lines goes with the last of them, whatever it is.
            rest = list(lines[at:])
            if out and not (text and text[-1][0] > out[-1].lines[-1][0]):
                out[-1].lines += rest
            else:
                text += rest
            break
        number, raw = lines[at]
        fence = _FENCE.match(raw) if len(raw) < _LONG and ("```" in raw or "~~~" in raw) else None
        if fence is not None:
            inside, at = _fenced(lines, at + 1, fence[1])
            if any(one.strip() for _, one in inside):
                out.append(Block(kind=BlockKind.FENCE, lines=inside, caption=_caption(text, number)))
            continue
        kind = _kind(raw)
        wide = _columns(lines, at) if kind is None else 0
        if wide > 1:
            out.append(Block(kind=BlockKind.COLUMNS, lines=list(lines[at : at + wide]), caption=_caption(text, number)))
            at += wide
            continue
        if kind is None or (kind is BlockKind.SCRAPE and not _goes_on(lines, at)):
            if raw.strip() and not ("<" in raw and _TAG.match(raw[:_LONG])):
                text.append((number, _unquoted(raw) if ">" in raw else raw))
            at += 1
            continue
        inside, at = _run(lines, at, kind)
        caption = _caption(text, number)
        out += [Block(kind=kind, lines=part, caption=caption) for part in _parted(kind, inside)]
    out = _bounded(out)
    if text:
        out.append(Block(kind=BlockKind.TEXT, lines=text))
    return out


def _bounded(blocks: list[Block]) -> list[Block]:
    """At most `MOST_BLOCKS`: what comes behind them joins the last one of its kind."""
    kept, last = blocks[:MOST_BLOCKS], {}
    for block in kept:
        last[block.kind] = block
    for block in blocks[MOST_BLOCKS:]:
        known = last.setdefault(block.kind, block)
        if known is block:
            kept.append(block)
        else:
            known.lines += block.lines
    return kept


def _unquoted(text: str) -> str:
    return _QUOTE.sub("", text) if text.lstrip().startswith(">") else text


def _caption(text: list[Line], line: int) -> str:
    """The text just above: `Before:`, `### with chunked prefill`."""
    if not text or line - text[-1][0] > 4 or len(text[-1][1]) > 80:
        return ""
    return re.sub(r"^[\s#>*\-=_]+|[\s*:_=]+$", "", text[-1][1])


def _fenced(lines: Sequence[Line], at: int, mark: str) -> tuple[list[Line], int]:
    """(the lines up to the closing fence, the place behind it). One that is never closed ends with the text."""
    inside: list[Line] = []
    while at < len(lines):
        text = lines[at][1]
        if _unquoted(text).strip().startswith(mark) and set(_unquoted(text).strip()) <= {mark[0]}:
            return inside, at + 1
        inside.append((lines[at][0], _unquoted(text)))
        at += 1
    return inside, at


def _kind(text: str) -> BlockKind | None:
    """What a line begins, told by itself; `None` for text."""
    first = text[:1]
    if first.isalnum() or first in "([_: \t":
        if (not first.isalpha() or _may_log(text)) and _LOG.match(text[:200]):
            return BlockKind.LOG
    elif first == "#":
        return BlockKind.SCRAPE if _HELP.match(text) else None
    if first in "{[":
        return _json_kind(text.strip())
    if first.isalpha() or first in "_:":
        return BlockKind.SCRAPE if len(text) < _LONG and _SAMPLE.match(text) else None
    return None


def _may_log(text: str) -> bool:
    """Whether a line that begins with a letter may match `_LOG`: a level, an engine's word, a month, or a name and a
    bar. Most lines are none of these, and the pattern is dear.
    """
    return text[0] in "CDEFGIPW" or text[3:4] == " " or "|" in text[:200]


def _json_kind(text: str) -> BlockKind | None:
    if len(text) == 1 or '"' in text[:200]:
        return BlockKind.LINES if text[-1:] in "}]," and len(text) > 2 else BlockKind.JSON
    return None


def _columns(lines: Sequence[Line], at: int) -> int:
    """How many lines from `at` on are a header and rows with as many separators; 0 where that is none."""
    header = lines[at][1]
    if len(header) > _LONG or at + 1 >= len(lines):
        return 0
    for mark in ("\t", ";", ","):
        if mark not in header or lines[at + 1][1].count(mark) != (count := header.count(mark)):
            continue
        if not any(cell.lstrip()[:1].isdigit() for cell in lines[at + 1][1].split(mark)):
            continue
        if any(len(cell) > 50 or cell[:1].isdigit() for cell in map(str.strip, header.split(mark))):
            continue
        end = at + 1
        while end < len(lines) and lines[end][1].count(mark) == count and len(lines[end][1]) < _LONG:
            end += 1
        return end - at
    return 0


def _goes_on(lines: Sequence[Line], at: int) -> bool:
    """One line `word 5` is no scrape; several are, and so is one with labels."""
    text = lines[at][1]
    if "{" in text or text.startswith("#"):
        return True
    following = lines[at + 1][1] if at + 1 < len(lines) else ""
    return bool(_SAMPLE.match(following[:_LONG]) or _HELP.match(following))


def _run(lines: Sequence[Line], at: int, kind: BlockKind) -> tuple[list[Line], int]:
    """The lines of one block from `at` on, and the place behind it."""
    if kind is BlockKind.JSON:
        return _document(lines, at)
    inside = [lines[at]]
    place, last = at + 1, at
    strays = 0
    while place < len(lines):
        text = lines[place][1]
        if ("```" in text or "~~~" in text) and _FENCE.match(text[:_LONG]):
            break
        same = _kind(text) is kind
        if same:
            last, strays = place, 0
        elif text.strip():
            strays += 1
            # A log is wrapped and has tracebacks; what reads like a sentence, or is a table, is no part of it.
            broken = text.lstrip().startswith("|") or is_sentence(text[:_LONG]) or _kind(text) is not None
            if kind is not BlockKind.LOG or broken or strays > 60:
                break
        elif place - last > 3:
            break
        place += 1
    end = last + 1
    if kind is BlockKind.LOG:
        # Lines that follow the last stamped one belong to it while nothing else claims them.
        end = max(end, place)
        while end > last + 1 and not lines[end - 1][1].strip():
            end -= 1
    inside = list(lines[at:end])
    return inside, end


def _document(lines: Sequence[Line], at: int) -> tuple[list[Line], int]:
    """One JSON document over several lines, told by its brackets."""
    depth = 0
    place = at
    while place < len(lines) and place - at < _MOST_OF_JSON:
        text = lines[place][1] if len(lines[place][1]) < 100_000 else ""
        if '"' in text:
            text = _outside(text)
        depth += text.count("{") + text.count("[") - text.count("}") - text.count("]")
        place += 1
        if depth <= 0:
            break
    return list(lines[at:place]), place


def _outside(text: str) -> str:
    """A line of JSON without what stands in its strings."""
    if "\\" in text:
        return _STRING.sub("", text)
    parts = text.split('"')
    # Behind the last of an odd number of quotes nothing is known to be a string.
    return "".join(parts[::2]) if len(parts) % 2 else "".join([*parts[::2], parts[-1]])


def _parted(kind: BlockKind, inside: list[Line]) -> list[list[Line]]:
    """Two scrapes one under the other: a sample that is there already begins the second."""
    if kind is not BlockKind.SCRAPE:
        return [inside]
    parts: list[list[Line]] = [[]]
    seen: set[str] = set()
    for number, text in inside:
        name = text.rpartition(" ")[0] if not text.startswith("#") else text
        if name.strip() and name in seen:
            parts.append([])
            seen = set()
        seen.add(name)
        parts[-1].append((number, text))
    return parts
