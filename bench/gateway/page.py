"""The results as Markdown, and their place in docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import first_token
import soak
from harness import ROOT
from verdicts import Verdict, title
from windows import PACED, SINGLE, Row, Spread, Table

PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN = "<!-- begin: written by `scripts/bench gateway`; edit bench/gateway/page.py instead -->"
END = "<!-- end: scripts/bench gateway -->"
MARK = {True: "kept", False: "**broken**", None: "-"}


def rows(head: list[str], body: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def spread(value: Spread | None, digits: int = 2) -> str:
    """Or a dash."""
    return "-" if value is None else value.text(digits)


def number(value: float | None, digits: int = 0) -> str:
    """Or a dash."""
    return "-" if value is None else f"{value:,.{digits}f}"


def by_cost(table: Table) -> list[str]:
    """Cheapest paced chunk first; what has no process of its own first of all."""

    def cost(name: str) -> float:
        found = table.costs(name, "paced") or table.costs(name, "single")
        return found.median if found else 0.0

    return sorted(table.names, key=cost)


def conditions(parts: dict[str, Any]) -> str:
    """What was measured, on what, when."""
    facts = parts["conditions"]
    body = [[title(name), f"`{text}`"] for name, text in facts["versions"].items()]
    lines = [f"{facts['date']}, {facts['machine']}. {facts['rounds']}. {facts['load']}.", "", facts["note"]]
    return "\n".join(lines).strip() + "\n\n" + rows(["gateway", "version"], body)


def costs(table: Table) -> str:
    """CPU per unit of work, medians of the rounds with their range, and ratios to nginx of the same round."""
    head = ["gateway", "CPU s / 100k paced chunks", "× nginx", "CPU s / 1,000 non-streamed", "× nginx", "failed"]
    body = []
    for name in by_cost(table):
        if name == "direct":
            continue
        cells = [title(name)]
        for group, digits in (("paced", 2), ("single", 4)):
            cells += [spread(table.costs(name, group), digits), spread(table.ratio(name, "nginx", group))]
        body.append([*cells, str(table.errors(name))])
    return rows(head, body)


def costs_by_scenario(table: Table) -> str:
    """The ratio to nginx in each scenario."""
    scenarios = [name for name in (*PACED, *SINGLE) if name in table.scenarios]
    body = []
    for name in by_cost(table):
        if name in {"direct", "nginx"}:
            continue
        group = {scenario: "single" if scenario in SINGLE else "paced" for scenario in scenarios}
        body.append([title(name), *(spread(table.ratio(name, "nginx", group[one], (one,))) for one in scenarios)])
    return rows(["× nginx", *scenarios], body)


def latencies(table: Table) -> str:
    """Medians of the rounds; one machine carries the load, the gateway and the engine."""
    head = ["gateway"]
    reads: list[tuple[str, Callable[[Row], float | None], int]] = []
    for scenario in (name for name in PACED if name in table.scenarios):
        head += [f"{scenario} TTFT p50 / p99 ms", f"{scenario} relay p50 / p99 ms"]
        for key in ("ttft_us", "relay_us"):
            reads += [
                (scenario, lambda row, key=key: _ms(row[key]["p50"]), 2),
                (scenario, lambda row, key=key: _ms(row[key]["p99"]), 2),
            ]
    body = []
    for name in by_cost(table):
        values = [number(table.median(name, scenario, read), digits) for scenario, read, digits in reads]
        pairs = [f"{p50} / {p99}" for p50, p99 in zip(values[::2], values[1::2], strict=True)]
        cells = [title(name), *pairs]
        cells += [number(table.median(name, one, lambda row: row["rps"])) for one in SINGLE if one in table.scenarios]
        cells.append(number(max((row["rss_mb"] for row in table.rows if row["name"] == name), default=0.0) or None))
        body.append(cells)
    head += [f"{scenario} requests/s" for scenario in SINGLE if scenario in table.scenarios]
    return rows([*head, "peak RSS MB"], body)


def _ms(value: float | None) -> float | None:
    return None if value is None else value / 1e3


def first_tokens(cells: list[Row]) -> str:
    """What each gateway adds at one connection."""
    names = list(dict.fromkeys(row["name"] for row in cells if row["name"] != "direct"))
    body = [
        [title(name), *(spread(first_token.added(cells, name, mode)) for mode in ("stream", "single"))]
        for name in names
    ]
    body.sort(key=lambda line: float(line[1].split(" ")[0]) if line[1] != "-" else 1e9)
    return rows(["gateway", "added TTFT, streamed, ms", "added to a non-streamed answer, ms"], body)


def conduct(cells: list[dict[str, Any]]) -> str:
    """Rules by gateway."""
    names = list(dict.fromkeys(row["target"] for row in cells))
    tests = list(dict.fromkeys(row["test"] for row in cells))
    seen = {(row["target"], row["test"]): row["ok"] for row in cells}
    sign = {True: "yes", False: "**no**", None: "not judged"}
    body = [
        [f"`{test}`", *(sign[seen[name, test]] if (name, test) in seen else "-" for name in names)] for test in tests
    ]
    return rows(["rule", *map(title, names)], body)


def soaks(cells: list[dict[str, Any]]) -> str:
    """Streams at once, for a minute."""
    body = []
    for row in cells:
        if "fatal" in row:
            body.append([title(row["name"]), "failed", *"------"])
            continue
        grown = soak.growth(row)
        relay, ttft = row["relay_us"], row["ttft_us"]
        body.append(
            [
                title(row["name"]),
                str(row["errors"]),
                f"{row['chunks_per_s']:,.0f} of {row['streams'] * 1000 / soak.GAP_MS:,.0f}",
                f"{_ms(relay['p50']):.2f} / {_ms(relay['p90']):.2f} / {_ms(relay['p99']):.2f}",
                f"{number(_ms(ttft['p50']), 2)} / {number(_ms(ttft['p99']), 2)}",
                number(row["cpu_util"], 2) if row["cpu_util"] else "-",
                f"{grown[0]:.0f} → {grown[1]:.0f}" if grown else "-",
                f"{max(point[-1] for point in row['memory']):.0f}" if grown else "-",
            ]
        )
    head = [
        "gateway",
        "errors",
        "tokens/s",
        "relay p50 / p90 / p99 ms",
        "TTFT p50 / p99 ms",
        "cores",
        "RSS MB",
        "all processes, peak",
    ]
    return rows(head, body)


def verdict_table(verdicts: list[Verdict]) -> str:
    """Budgets, kept or broken."""
    return rows(
        ["budget", "measured: median (range)", ""],
        [[verdict.budget, verdict.measured, MARK[verdict.kept]] for verdict in verdicts],
    )


def section(parts: dict[str, Any], verdicts: list[Verdict]) -> str:
    """All of it."""
    table = Table(parts["windows"])
    out = ["### Conditions\n", conditions(parts), "### Budgets\n", verdict_table(verdicts)]
    out += ["### CPU for a unit of work\n", costs(table), costs_by_scenario(table)]
    out += ["### Latency and throughput\n", latencies(table)]
    for key, heading, text in (
        ("first_token", "### Added at one connection\n", first_tokens),
        ("soak", f"### {_streams(parts)} streams at 20 tokens/s\n", soaks),
        ("conduct", "### Behaviour\n", conduct),
    ):
        if parts[key]:
            out += [heading, text(parts[key])]
    if parts.get("gates"):
        out.append("\n".join(f"- {line}" for line in parts["gates"]) + "\n")
    for row in table.fatal:
        out.append(f"Lost window: {title(row['name'])} in {row['scenario']}: `{row['fatal'][-120:]!r}`.\n")
    return "\n".join(out)


def _streams(parts: dict[str, Any]) -> str:
    return f"{parts['soak'][0].get('streams', 0):,}" if parts["soak"] else ""


def write(text: str, page: Path) -> None:
    """Replace what stands between the marks."""
    whole = page.read_text("utf-8")
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has not both marks: {BEGIN} … {END}")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", "utf-8")
