"""A comparison as GitHub-flavoured Markdown, for a comment on a pull request (at most 65,536 characters there)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from tailrace.cli.compare_print import engine_cells, engine_remark, interval, mark_of, number, shown_metrics
from tailrace.model.measurement import Comparison, ComparisonSet, EngineView, MetricDelta, Verdict

__all__ = ["LIMIT", "as_markdown", "cell"]

LIMIT: Final = 60_000
"""Characters; what is beyond is left out at the end of a line, and that is said."""
_ICONS: Final = {
    Verdict.IMPROVED: "✅",
    Verdict.REGRESSED: "❌",
    Verdict.NO_DIFFERENCE: "🟰",
    Verdict.INCONCLUSIVE: "❔",
}
_CUT: Final = "\n\n*The rest was left out: a comment holds no more. `--json` has everything.*\n"
_ACTIVE: Final = re.compile(r"([\\`*_{}\[\]<>#|~])")


def as_markdown(result: Comparison | ComparisonSet | EngineView) -> str:
    """Verdict first, then one table; everything else can be unfolded."""
    if isinstance(result, EngineView):
        blocks = _engines(result)
    elif isinstance(result, ComparisonSet):
        blocks = _many(result)
    else:
        blocks = _one(result)
    return _bounded("\n\n".join(block for block in blocks if block))


def cell(text: object) -> str:
    """Text that means nothing to Markdown: names of files and classes are the user's, pipes would end a cell."""
    plain = " ".join(str(text).split())
    # A mention or an issue number in a name must not call anybody.
    return _ACTIVE.sub(r"\\\1", plain).replace("@", "@\u200b")


def _bounded(text: str) -> str:
    if len(text) + 1 <= LIMIT:
        return text + "\n"
    kept = text[: LIMIT - len(_CUT) - 200]
    kept = kept[: kept.rfind("\n")]
    # What was opened is closed, or the rest of the page would be folded away with it.
    closing = "\n\n</details>" * max(0, kept.count("<details>") - kept.count("</details>"))
    return kept + closing + _CUT


def _one(result: Comparison) -> list[str]:
    return [
        f"### {_ICONS[result.verdict]} {cell(_name(result.verdict))}"
        + (f": {cell(result.in_short)}" if result.in_short and not result.refused else ""),
        cell(result.summary),
        f"A = {cell(result.name_a or 'A')} (n = {result.n_a:,}), B = {cell(result.name_b or 'B')} (n = {result.n_b:,})",
        _metrics(result, shown_metrics(result)),
        _rules(result),
        *_details(result),
    ]


def _name(verdict: Verdict) -> str:
    return str(verdict).replace("_", " ").capitalize()


def _metrics(result: Comparison, shown: dict[str, MetricDelta]) -> str:
    rows = [
        (
            ("**" + cell(name) + "**") if name in result.headline else cell(name),
            number(delta.a),
            number(delta.b),
            "" if delta.delta_pct is None else f"{delta.delta_pct:+.1f} %",
            interval(delta),
            f"{delta.n_a:,} / {delta.n_b:,}",
            cell(delta.note or ("" if delta.ci_pct[0] is None else str(delta.verdict).replace("_", " "))),
        )
        for name, delta in shown.items()
    ]
    if not rows:
        return ""
    table = _table(("metric", "A ms", "B ms", "change", "95 % interval", "n", "verdict"), rows)
    return table + "\n\nThe verdict rests on the metrics in bold."


def _rules(result: Comparison) -> str:
    icons = {"kept": "✅ kept", "BROKEN": "❌ broken", "undecided": "❔ undecided"}
    rows = [(icons[mark_of(one.passed)], cell(one.rule), cell(one.text)) for one in result.rules]
    return _table(("rule", "limit", "measured"), rows, right=()) if rows else ""


def _details(result: Comparison) -> list[str]:
    rates = [
        (cell(name), f"{rate.a:,.2f}", f"{rate.b:,.2f}", "" if rate.delta_pct is None else f"{rate.delta_pct:+.1f} %")
        for name, rate in result.rates.items()
    ]
    failures = [
        (
            cell(f"{one.outcome.replace('_', ' ')} ({one.reason})"),
            cell(one.budget),
            "" if one.limit_ms is None else f"{one.limit_ms:,.0f}",
            str(one.a),
            str(one.b),
        )
        for one in result.failures
    ]
    shown = shown_metrics(result)
    rest = {name: delta for name, delta in result.metrics.items() if name not in shown}
    return [
        _bullets("Trade-offs", result.trade_offs, folded=False),
        _bullets("What else changed", result.same_work.get("changed", [])),
        _bullets("Not comparable", [f"{name}: {why}" for name, why in result.not_comparable.items()], folded=False),
        _fold("Throughput", _table(("a second", "A", "B", "change"), rates)) if rates else "",
        _fold("Ended without completing", _table(("end", "budget", "after ms", "A", "B"), failures))
        if failures
        else "",
        _bullets("Good to know", result.checks),
        _bullets("Conditions that an arm does not tell", result.unknown),
        _fold(f"All {len(rest)} other metrics", _metrics(result, rest)) if rest else "",
    ]


def _many(result: ComparisonSet) -> list[str]:
    rows = []
    for row in result.ranking:
        one = result.comparisons.get(row.name)
        delta = None if one is None else one.metrics.get(result.metric)
        rows.append(
            (
                str(row.rank) if row.comparable else "-",
                cell(row.name),
                number(row.value_ms),
                "" if delta is None or delta.delta_pct is None else f"{delta.delta_pct:+.1f} %",
                "" if delta is None else interval(delta),
                f"{row.failed_share:.2%}",
                f"{row.n:,}",
                "baseline" if row.verdict is None else f"{_ICONS[row.verdict]} {_name(row.verdict)}",
            )
        )
    titles = (
        "rank",
        "arm",
        cell(f"{result.metric or 'headline'} ms"),
        "change",
        "95 % interval",
        "failed",
        "n",
        "verdict",
    )
    return [
        f"### {_ICONS[result.verdict]} {cell(result.summary)}",
        _table(titles, rows),
        "Verdicts hold for all arms together (Holm, 5 %). Arms that share a rank could not be told apart.",
        *(
            _fold(f"{name}: {one.summary}", "\n\n".join(b for b in _one(one)[3:] if b))
            for name, one in result.comparisons.items()
        ),
    ]


def _engines(view: EngineView) -> list[str]:
    out = ["### Engines side by side"]
    for group in dict.fromkeys(row.group for row in view.rows):
        rows = [
            (
                cell(row.name + (f", {row.unit}" if row.unit else "")),
                *map(cell, engine_cells(view.engines, row)),
                cell(engine_remark(row)),
            )
            for row in view.rows
            if row.group == group
        ]
        out.append(_table((group, *map(cell, view.engines), "remark"), rows))
    return [*out, _bullets("Good to know", view.checks, folded=False)]


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] | None = None) -> str:
    rule = [
        "---:" if (i in right if right is not None else 0 < i < len(titles) - 1) else "---" for i in range(len(titles))
    ]
    lines = ["| " + " | ".join(titles) + " |", "| " + " | ".join(rule) + " |"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _bullets(title: str, lines: Sequence[str], *, folded: bool = True) -> str:
    if not lines:
        return ""
    body = "\n".join(f"- {cell(line)}" for line in lines)
    return _fold(title, body) if folded else f"**{title}**\n\n{body}"


def _fold(title: str, body: str) -> str:
    head = title.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"<details><summary>{head}</summary>\n\n{body}\n\n</details>"
