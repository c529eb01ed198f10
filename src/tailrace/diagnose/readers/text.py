"""Text that people write and paste: tables, printed benchmarks, command lines, sentences, in one file or alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tailrace.diagnose.observed import Observed, Understood
from tailrace.diagnose.readers.bench_command import commands_in, flags_in, is_bench_command
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.gpu_processes import processes_in
from tailrace.diagnose.readers.grids import Line, grids_in
from tailrace.diagnose.readers.html_tables import with_pipes
from tailrace.diagnose.readers.listed_rows import with_listed_rows
from tailrace.diagnose.readers.printed import is_printed_row, is_titled, runs_in
from tailrace.diagnose.readers.prose import is_code, is_sentence
from tailrace.diagnose.readers.table_arms import arms_of
from tailrace.diagnose.readers.tables import arms_in, numbered_lines, requests_in

__all__ = ["MOST_LINES", "TEXT", "observed_text"]

_TITLE: Final = re.compile(
    r"^\s*(?:#{1,6}\s|\*\*[^*|]+\*\*:?\s*$|[^|=]{2,60}:\s*$|[-*] \[[ xX]\]"
    r"|!\[[^\]\n]*\]\(|<img\s|</?details|</?summary)"
)
"""A heading of Markdown, a line that announces the next one, a box to tick, a picture."""
MOST_LINES: Final = 10_000
"""Nobody writes more; what is longer is a log of no known format. The rest is counted as not understood."""
_MOST_NOTES: Final = 200
_LONGEST_NOTE: Final = 500
_SHOWN: Final = 3
_LOOKED_AT: Final = 400


def observed_text(lines: Sequence[Line], source: str, *, most: int = MOST_LINES) -> Observed:
    """Everything in these lines that is a command, a table or a printed row; sentences are notes. Nothing raises.

    Lines beyond the first `most` are counted as not understood.
    """
    lines = with_pipes(lines)
    filled = [(number, text) for number, text in lines if text.strip()]
    total = len(filled)
    beyond = filled[most:]
    if beyond:
        lines = [line for line in lines if line[0] < beyond[0][0]]
    commands, left = commands_in(lines, source)
    known = {item.name for item in commands}
    commands += [item for item in flags_in(left, source) if item.name not in known]
    processes, left = processes_in(left, source)
    requests, left, grids = requests_in(with_listed_rows(left), source)
    tables, left, left_out = arms_in(left, source, grids)
    printed, settings, left = runs_in(left, source)
    said = [(number, text.strip()) for number, text in left if is_sentence(text) or _TITLE.match(text[:200])]
    spoken = {number for number, _ in said}
    lost = [(number, text) for number, text in left if text.strip() and number not in spoken] + beyond
    what = [
        name
        for name, found in (
            ("tables", tables or requests.rows),
            ("processes", processes),
            ("printed results", printed),
            ("commands", commands),
        )
        if found
    ]
    understood = []
    if total > len(said):
        understood.append(
            Understood(
                source=source,
                format=", ".join(what) or "text",
                understood=max(total - len(said) - len(lost) - left_out, 0),
                total=total - len(said),
                examples=[f"{number}: {text.strip()[:80]}" for number, text in lost[:_SHOWN]],
            )
        )
    if said:
        understood.append(
            Understood(
                source=source,
                format="sentences: kept as context, they are no evidence",
                understood=0,
                total=len(said),
                examples=[f"{number}: {text[:80]}" for number, text in said[:1]],
            )
        )
    return Observed(
        arms=[*tables, *printed],
        settings=[*commands, *settings, *processes],
        rows=requests.rows,
        understood=[*understood, *requests.understood],
        notes=[text[:_LONGEST_NOTE] for _, text in said[:_MOST_NOTES]],
    )


def _matches(head: str, name: str) -> bool:
    del name
    lines = [(number, text) for number, text in enumerate(head.splitlines()[:_LOOKED_AT], start=1) if text.strip()]
    lines = with_pipes(lines)
    texts = [text for _, text in lines]
    if is_titled(head) or any(map(is_bench_command, texts)):
        return True
    rows = sum(map(is_printed_row, texts))
    if rows >= 2 and rows >= 0.4 * len(texts):
        return True
    grids, left = grids_in(lines)
    made = [grid for grid in grids if arms_of(grid, "")]
    if made and len(left) <= 3 * sum(len(grid.rows) + 1 for grid in made):
        return True
    sentences = sum(map(is_sentence, texts))
    return sentences >= 1 and sentences >= 0.5 * len(texts) and not any(map(is_code, texts[:5]))


def _read(path: Path, source: str) -> Observed:
    return observed_text(numbered_lines(path), source)


TEXT: Final = Format(name="text", matches=_matches, read=_read)
