"""The results as Markdown, and their place in docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from tools import TOOLS
from truth_server import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN = "<!-- begin: written by `scripts/bench probe`; edit bench/probe/page.py instead -->"
END = "<!-- end: scripts/bench probe -->"

Row = dict[str, Any]
FIGURES = {
    "ttft_p50": "TTFT p50", "ttft_p90": "TTFT p90", "ttft_p99": "TTFT p99", "gap_p99": "gap p99",
    "tpot_p99": "TPOT p99", "e2e_p99": "E2E p99", "tokens_per_s": "tok/s",
}  # fmt: skip
BUDGET_STREAMS = 128
"""The load at which the cost has a budget."""
WRONG = 0.10
"""A figure that is further from the truth than this, and by more than 3 ms, is set in bold."""


def table(head: list[str], body: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


class Rows:
    """The rows of a run, looked up by tool and load."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = [row for row in rows if "fatal" not in row]
        self.fatal = [row for row in rows if "fatal" in row]
        self.tools = [name for name in TOOLS if any(row["tool"] == name for row in self.rows)]
        self.streams = sorted({row["streams"] for row in self.rows if row["streams"]})
        self.rates = sorted({row["rate"] for row in self.rows if row["rate"]})

    def of(self, tool: str, *, streams: int | None = None, rate: float | None = None) -> list[Row]:
        """Its rows under that load."""
        wanted = (tool, streams, rate)
        return [row for row in self.rows if (row["tool"], row["streams"], row["rate"]) == wanted]

    def values(self, rows: list[Row], read: Callable[[Row], float | None]) -> list[float]:
        """What `read` finds in them."""
        return [value for value in map(read, rows) if value is not None]

    def middle(self, rows: list[Row], read: Callable[[Row], float | None]) -> float | None:
        """The median of the rounds."""
        values = self.values(rows, read)
        return median(values) if values else None

    def marginal(self, tool: str) -> float | None:
        """CPU seconds per 100,000 tokens between the smallest and the largest load: what is fixed falls out."""
        if len(self.streams) < 2:
            return None
        low, high = self.of(tool, streams=self.streams[0]), self.of(tool, streams=self.streams[-1])
        if not low or not high:
            return None
        spent = [self.middle(rows, lambda row: row["cpu_s"]) for rows in (low, high)]
        work = [self.middle(rows, lambda row: row["tokens"]) for rows in (low, high)]
        return (spent[1] - spent[0]) / (work[1] - work[0]) * 1e5  # type: ignore[operator]


def number(value: float | None, digits: int = 1) -> str:
    """Or a dash."""
    return "-" if value is None else f"{value:,.{digits}f}"


def spread(values: list[float], digits: int = 1) -> str:
    """Median and range."""
    if not values:
        return "-"
    if len(values) == 1:
        return number(values[0], digits)
    return f"{number(median(values), digits)} ({number(min(values), digits)}..{number(max(values), digits)})"


def errors(rows: Rows) -> str:
    """Reported / true, medians of the rounds."""
    body = []
    for streams in rows.streams:
        for tool in rows.tools:
            found = rows.of(tool, streams=streams)
            if not found:
                continue
            cells = [TOOLS[tool].title, str(streams)]
            for key in FIGURES:
                said = rows.middle(found, lambda row, key=key: row["reported"][key])
                true = rows.middle(found, lambda row, key=key: row["true"][key])
                digits = 0 if key == "tokens_per_s" else 1
                wrong = said is not None and true and abs(said - true) > max(WRONG * true, 3.0)
                text = f"{number(said, digits)} / {number(true, digits)}"
                cells.append(f"**{text}**" if wrong else text)
            opened = rows.middle(found, lambda row: row["connections"])
            cells.append(number(opened, 0))
            limited = [row["limited"] for row in found]
            cells.append(f"{sum(map(bool, limited))} of {len(limited)}")
            body.append(cells)
    return table(["tool", "streams", *FIGURES.values(), "connections", "said it was limited"], body)


def gap_names(rows: Rows) -> str:
    """What each calls the gap between events."""
    said = [f"{TOOLS[tool].title} {TOOLS[tool].gap}" for tool in rows.tools]
    return f"The gap is what each tool has for it: {'; '.join(said)}.\n"


def costs(rows: Rows) -> str:
    """CPU, memory, time beyond the load."""
    body = []
    for tool in rows.tools:
        cells = [TOOLS[tool].title]
        loads = [rows.of(tool, streams=streams) for streams in rows.streams]
        cells += [spread(rows.values(found, lambda row: row["cpu_s_per_100k"])) for found in loads]
        cells.append(number(rows.marginal(tool)))
        largest = loads[-1]
        cells.append(number(rows.middle(largest, lambda row: row["peak_pss_mib"]), 0))
        cells.append(number(rows.middle(largest, lambda row: row["processes"]), 0))
        cells.append(spread(rows.values(largest, lambda row: row["to_first_request_s"])))
        cells.append(spread(rows.values(largest, lambda row: row["beyond_s"])))
        body.append(cells)
    head = ["tool", *(f"CPU s / 100k tokens, {one} streams" for one in rows.streams), "the same, marginal"]
    head += ["peak PSS MiB", "processes", "s to the first request", "s beyond the load"]
    return table(head, body)


def schedules(rows: Rows) -> str:
    """Rates got, and lateness against the ideal schedule, at the server."""
    body = []
    for tool in rows.tools:
        cells = [TOOLS[tool].title]
        for rate in rows.rates:
            found = rows.of(tool, rate=rate)
            got = rows.middle(found, lambda row: row["got_rate"])
            late = [rows.middle(found, lambda row, key=key: row[key]) for key in ("late_p50_ms", "late_p99_ms")]
            text = number(got)
            cells.append(f"**{text}**" if got is not None and abs(got / rate - 1) > 0.01 else text)
            cells.append(f"{number(late[0])} / {number(late[1])}")
            limited = [row["limited"] for row in found]
            cells.append(f"{sum(map(bool, limited))} of {len(limited)}")
        body.append(cells)
    head = ["tool"]
    for rate in rows.rates:
        head += [f"asked {rate:g}/s: got", "late p50 / p99 ms", "said so"]
    return table(head, body)


def verdicts(rows: Rows) -> list[tuple[str, str, bool | None]]:
    """(budget, measured, kept) of the cost; at fewer streams the start of an interpreter is most of it."""
    if "tailrace" not in rows.tools or not rows.streams or rows.streams[-1] < BUDGET_STREAMS:
        return []
    out = []
    for tool, share, words in (("vllm", 1.0, "below"), ("guidellm", 0.25, "≤ 1/4 of"), ("aiperf", 0.25, "≤ 1/4 of")):
        if tool not in rows.tools:
            continue
        ratios = []
        for number_ in sorted({row["round"] for row in rows.rows}):
            pair = [
                next((row for row in rows.of(one, streams=rows.streams[-1]) if row["round"] == number_), None)
                for one in ("tailrace", tool)
            ]
            if pair[0] and pair[1]:
                ratios.append(pair[0]["cpu_s_per_100k"] / pair[1]["cpu_s_per_100k"])
        if ratios:
            budget = f"CPU per 100k tokens at {rows.streams[-1]} streams {words} {TOOLS[tool].title}"
            out.append((budget, f"{spread(ratios, 2)} ×", median(ratios) <= share))
    return out


def section(parts: dict[str, Any]) -> str:
    """All of it."""
    rows = Rows(parts["rows"])
    facts = parts["conditions"]
    lines = [f"{facts['date']}, {facts['machine']}. {facts['rounds']}. {facts['load']}.", "", facts["note"]]
    out = ["### What was measured with\n", "\n".join(lines) + "\n"]
    out.append(table(["tool", "version"], [[TOOLS[one].title, f"`{text}`"] for one, text in facts["versions"].items()]))
    if rows.streams:
        out += ["### Reported and true\n", "Milliseconds, reported / true, medians of the rounds. " + gap_names(rows)]
        out += [errors(rows), "### What measuring costs\n", costs(rows)]
    if judged := verdicts(rows):
        mark = {True: "kept", False: "**broken**", None: "-"}
        body = [[budget, measured, mark[kept]] for budget, measured, kept in judged]
        out.append(table(["budget", "measured: median (range)", ""], body))
    if rows.rates:
        out += ["### Schedules\n", schedules(rows)]
    for row in rows.fatal:
        load = f"{row['streams']} streams" if row["streams"] else f"{row['rate']:g}/s"
        out.append(f"Lost: {TOOLS[row['tool']].title} at {load}: `{' '.join(row['fatal'].split())[:200]}`.\n")
    return "\n".join(out)


def write(text: str, page: Path) -> None:
    """Replace what stands between the marks."""
    whole = page.read_text("utf-8")
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has not both marks: {BEGIN} … {END}")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", "utf-8")
