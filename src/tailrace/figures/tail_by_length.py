"""Which lengths make the tail: p95 and p99 of a metric by prompt length and output length."""

from __future__ import annotations

from typing import Any, Final

from tailrace.figures.interim import Cell, TailTable
from tailrace.figures.palette import GROUND, HEAT, Theme
from tailrace.figures.picture import Picture, axis, base_layout
from tailrace.figures.wording import count, duration, tokens

EMPTY: Final = (
    "No completed request with known prompt and output length in this window. Lengths come from the engine's usage "
    "block: send requests, or choose a longer window."
)
METRIC_NAMES: Final = {"ttft": "time to first token", "tpot": "time per output token", "e2e": "end-to-end time"}
NEEDED: Final = {"p95": 100, "p99": 500}


def tail_picture(analysis: TailTable, theme: Theme = "light") -> Picture:
    """A heat table; a cell that its n cannot support says so and has no colour."""
    metric = METRIC_NAMES.get(analysis.metric, analysis.metric)
    if not analysis.cells:
        return Picture(name="lengths", title=f"{metric.capitalize()} by length", empty=EMPTY, layout=base_layout(theme))
    quantile = _quantile(analysis)
    xs = sorted({cell.output for cell in analysis.cells})
    ys = sorted({cell.prompt for cell in analysis.cells})
    by_place = {(cell.prompt, cell.output): cell for cell in analysis.cells}
    grid = [[by_place.get((y, x)) for x in xs] for y in ys]
    x_names = [_range(analysis.output_edges, x) for x in xs]
    y_names = [_range(analysis.prompt_edges, y) for y in ys]
    values = [value for cell in analysis.cells if (value := _value(cell, quantile)) is not None]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    data: list[dict[str, Any]] = [_ground(grid, x_names, y_names, theme), _heat(grid, quantile, x_names, y_names, theme)]
    layout = base_layout(
        theme,
        xaxis=axis(theme, "output tokens", type="category", fixedrange=True, showgrid=False, side="bottom"),
        yaxis=axis(theme, "prompt tokens", type="category", fixedrange=True, showgrid=False),
        annotations=[
            _cell_text(cell, x_names[i], y_names[j], quantile, low, high, theme)
            for j, row in enumerate(grid)
            for i, cell in enumerate(row)
            if cell is not None
        ],
    )
    return Picture(
        name="lengths",
        title=_title(analysis, quantile, metric),
        note=_note(analysis, quantile),
        data=data,
        layout=layout,
    )


def _value(cell: Cell, quantile: str) -> float | None:
    return cell.p99_ms if quantile == "p99" else cell.p95_ms


def _quantile(analysis: TailTable) -> str:
    """P99 when most requests sit in cells that support it, p95 otherwise: one colour scale never mixes the two."""
    supported = sum(cell.n for cell in analysis.cells if cell.p99_ms is not None)
    return "p99" if supported * 2 >= analysis.n else "p95"


def _range(edges: list[int], place: int) -> str:
    low = edges[place]
    return f"≥ {tokens(low)}" if place + 1 >= len(edges) else f"{tokens(low)}–{tokens(edges[place + 1])}"


def _ground(grid: list[list[Cell | None]], xs: list[str], ys: list[str], theme: Theme) -> dict[str, Any]:
    """Cells with requests but too few of them, in the colour that means "not enough"."""
    color = GROUND[theme]["missing"]
    return {
        "type": "heatmap",
        "x": xs,
        "y": ys,
        "z": [[0 if cell is not None else None for cell in row] for row in grid],
        "colorscale": [[0, color], [1, color]],
        "showscale": False,
        "xgap": 3,
        "ygap": 3,
        "hoverinfo": "skip",
    }


def _heat(grid: list[list[Cell | None]], quantile: str, xs: list[str], ys: list[str], theme: Theme) -> dict[str, Any]:
    return {
        "type": "heatmap",
        "x": xs,
        "y": ys,
        "z": [[None if cell is None else _value(cell, quantile) for cell in row] for row in grid],
        "customdata": [[_hover(cell) for cell in row] for row in grid],
        "hovertemplate": "prompt %{y}, output %{x} tokens<br>%{customdata}<extra></extra>",
        "hoverongaps": False,
        "colorscale": [list(stop) for stop in HEAT[theme]],
        "zmin": 0,
        "xgap": 3,
        "ygap": 3,
        "colorbar": {
            "title": {"text": f"{quantile}, ms", "side": "right", "font": {"size": 11}},
            "thickness": 10,
            "outlinewidth": 0,
            "tickfont": {"color": GROUND[theme]["faint"], "size": 11},
        },
    }


def _hover(cell: Cell | None) -> str:
    if cell is None:
        return ""
    lines = [f"n = {count(cell.n)}, longest {duration(cell.max_ms)}"]
    for name, value in (("p95", cell.p95_ms), ("p99", cell.p99_ms)):
        lines.append(f"{name} {duration(value)}" if value is not None else f"{name}: needs n ≥ {NEEDED[name]}")
    return "<br>".join(lines)


def _cell_text(
    cell: Cell, x: str, y: str, quantile: str, low: float, high: float, theme: Theme
) -> dict[str, Any]:
    value = _value(cell, quantile)
    ground = GROUND[theme]
    if value is None:
        text, color = f"n {count(cell.n)}<br>too few", ground["faint"]
    else:
        text = f"<b>{duration(value)}</b><br>n {count(cell.n)}"
        # The ramp crosses middle lightness near two fifths of its length in either theme.
        far = value / high > 0.45 if high else False
        color = ("#ffffff" if far else "#1b1f24") if theme == "light" else ("#000000" if far else "#ffffff")
    return {"x": x, "y": y, "text": text, "showarrow": False, "font": {"size": 11, "color": color}}


def _title(analysis: TailTable, quantile: str, metric: str) -> str:
    ranked = [(value, cell) for cell in analysis.cells if (value := _value(cell, quantile)) is not None]
    if not ranked:
        return f"Too few requests of any one length for a {quantile} of {metric}"
    value, worst = max(ranked, key=lambda pair: pair[0])
    where = (
        f"prompts of {_range(analysis.prompt_edges, worst.prompt)} tokens with answers of "
        f"{_range(analysis.output_edges, worst.output)}"
    )
    return f"{quantile} of {metric} is worst, {duration(value)}, for {where}"


def _note(analysis: TailTable, quantile: str) -> str:
    note = (
        f"{count(analysis.n)} completed requests. Grey: too few requests for a {quantile} "
        f"(it needs n ≥ {NEEDED[quantile]})."
    )
    if analysis.unknown:
        note += f" {count(analysis.unknown)} more have no known length or metric and are not shown."
    return note
