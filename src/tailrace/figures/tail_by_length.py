"""Which lengths make the tail: p95 and p99 of a metric by prompt length and output length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tailrace.analyze.buckets import LengthCell
from tailrace.figures.palette import GROUND, HEAT, Theme
from tailrace.figures.picture import Picture, axis, base_layout
from tailrace.figures.wording import METRIC_NAMES, count, duration, plain
from tailrace.stats.quantiles import needed

NAME: Final = "lengths"
EMPTY: Final = (
    "No completed request with known lengths in this window. Output length comes from the engine's usage block or its "
    "chunks: send a request, or choose a longer window."
)
_LEVELS: Final = {"p95": 0.95, "p99": 0.99}
_ROW_HEIGHT: Final = 54
_FAR: Final = 0.55
"""Share of the colour scale from which a cell is far from its ground, so that its text changes to the other ink."""


def tail_picture(
    cells: Sequence[LengthCell], metric: str = "ttft", theme: Theme = "light", *, unknown: int = 0
) -> Picture:
    """A heat table of every cell of the grid, each with its n.

    A cell that its n cannot support says so and has no colour. `unknown`: completed requests that are not in the grid.
    """
    words = METRIC_NAMES.get(metric, plain(metric))
    n = sum(cell.n for cell in cells)
    if not n:
        title = f"{words[0].upper()}{words[1:]} by length"
        return Picture(name=NAME, title=title, empty=EMPTY, layout=base_layout(theme))
    quantile = _quantile(cells, n)
    ys = list(dict.fromkeys(cell.prompt for cell in cells))
    xs = list(dict.fromkeys(cell.output for cell in cells))
    placed = {(cell.prompt, cell.output): cell for cell in cells}
    grid = [[placed[(y, x)] for x in xs] for y in ys]
    high = max((value for cell in cells if (value := _value(cell, quantile)) is not None), default=1.0)
    layout = base_layout(
        theme,
        height=_ROW_HEIGHT * len(ys) + 60,
        xaxis=axis(theme, "output tokens", type="category", fixedrange=True, showgrid=False, ticks=""),
        yaxis=axis(theme, "prompt tokens", type="category", fixedrange=True, showgrid=False, ticks=""),
        annotations=[_cell_text(cell, quantile, high, theme) for cell in cells if cell.n],
    )
    return Picture(
        name=NAME,
        title=_title(cells, quantile, words),
        note=_note(n, quantile, unknown),
        alt=_alt(cells, quantile),
        data=[_ground(grid, xs, ys, theme), _heat(grid, quantile, high, xs, ys, theme)],
        layout=layout,
    )


def _value(cell: LengthCell, quantile: str) -> float | None:
    return cell.p99 if quantile == "p99" else cell.p95


def _quantile(cells: Sequence[LengthCell], n: int) -> str:
    """P99 when most requests sit in cells that support it, p95 otherwise: one colour scale never mixes the two."""
    supported = sum(cell.n for cell in cells if cell.p99 is not None)
    return "p99" if supported * 2 >= n else "p95"


def _ground(grid: list[list[LengthCell]], xs: list[str], ys: list[str], theme: Theme) -> dict[str, Any]:
    """Cells with requests but too few of them, in the colour that means "not enough"."""
    color = GROUND[theme]["missing"]
    return {
        "type": "heatmap",
        "x": xs,
        "y": ys,
        "z": [[0 if cell.n else None for cell in row] for row in grid],
        "colorscale": [[0, color], [1, color]],
        "showscale": False,
        "xgap": 3,
        "ygap": 3,
        "customdata": [[_hover(cell) for cell in row] for row in grid],
        "hovertemplate": "prompt %{y}, output %{x} tokens<br>%{customdata}<extra></extra>",
        "hoverongaps": False,
    }


def _heat(
    grid: list[list[LengthCell]], quantile: str, high: float, xs: list[str], ys: list[str], theme: Theme
) -> dict[str, Any]:
    values = [[_value(cell, quantile) for cell in row] for row in grid]
    return {
        "type": "heatmap",
        "x": xs,
        "y": ys,
        "z": values,
        "customdata": [[_hover(cell) for cell in row] for row in grid],
        "hovertemplate": "prompt %{y}, output %{x} tokens<br>%{customdata}<extra></extra>",
        "hoverongaps": False,
        "colorscale": [list(stop) for stop in HEAT[theme]],
        "zmin": 0,
        "zmax": high,
        "xgap": 3,
        "ygap": 3,
        "showscale": any(value is not None for row in values for value in row),
        "colorbar": {
            "title": {"text": f"{quantile}, ms", "side": "right", "font": {"size": 11}},
            "thickness": 10,
            "outlinewidth": 0,
            "tickformat": ",~r",
            "tickfont": {"color": GROUND[theme]["faint"], "size": 11},
        },
    }


def _hover(cell: LengthCell) -> str:
    lines = [f"n = {count(cell.n)}, longest {duration(cell.max)}"]
    for name, value in (("p95", cell.p95), ("p99", cell.p99)):
        lines.append(f"{name} {duration(value)}" if value is not None else f"{name}: needs n ≥ {needed(_LEVELS[name])}")
    return "<br>".join(lines)


def _cell_text(cell: LengthCell, quantile: str, high: float, theme: Theme) -> dict[str, Any]:
    value = _value(cell, quantile)
    if value is None:
        lower = f"p95 {duration(cell.p95)}<br>" if cell.p95 is not None else ""
        text, color = f"{lower}n {count(cell.n)}", GROUND[theme]["faint"]
    else:
        other = "p95" if quantile == "p99" else "p99"
        second = cell.p95 if other == "p95" else cell.p99
        text = f"<b>{duration(value)}</b><br>"
        text += f"{other} {duration(second)}<br>" if second is not None else ""
        text += f"n {count(cell.n)}"
        far = bool(high) and value / high > _FAR
        color = ("#ffffff" if far else "#1b1f24") if theme == "light" else ("#000000" if far else "#ffffff")
    return {
        "x": cell.output,
        "y": cell.prompt,
        "text": text,
        "showarrow": False,
        "font": {"size": 11, "color": color},
    }


def _title(cells: Sequence[LengthCell], quantile: str, words: str) -> str:
    ranked = [(value, cell) for cell in cells if (value := _value(cell, quantile)) is not None]
    if not ranked:
        return f"Too few requests of any one length for a {quantile} of {words}"
    value, worst = max(ranked, key=lambda pair: pair[0])
    return (
        f"{quantile} of {words} is worst, {duration(value)}, at prompts of {worst.prompt} tokens with answers of "
        f"{worst.output}"
    )


def _note(n: int, quantile: str, unknown: int) -> str:
    note = (
        f"{count(n)} completed requests; the large number and the colour are {quantile}. Grey cells have too few "
        f"requests for it (n ≥ {needed(_LEVELS[quantile])})."
    )
    if unknown:
        note += f" {count(unknown)} more have no known length or no such time and are left out."
    return note


def _alt(cells: Sequence[LengthCell], quantile: str) -> str:
    known = [(value, cell) for cell in cells if (value := _value(cell, quantile)) is not None]
    return ". ".join(
        f"prompt {cell.prompt}, output {cell.output}: {quantile} {duration(value)}, n {count(cell.n)}"
        for value, cell in sorted(known, key=lambda pair: -pair[0])
    )
