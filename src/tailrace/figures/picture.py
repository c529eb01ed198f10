"""`Picture`: a Plotly figure as plain data, with the sentence that it shows.

Builders make plain dicts, not `plotly.graph_objects`: building and validating those costs tens of milliseconds
of interpreter time, which a gateway's event loop would feel even from a worker thread. `Picture.figure()` gives
the validated object for reports and notebooks; the tests call it on everything that the builders make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tailrace.figures.palette import GROUND, Theme, stage_color, stage_pattern

if TYPE_CHECKING:
    import plotly.graph_objects as go

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. `title` says what is to be seen, as plain text (not markup)."""

    name: str
    title: str
    note: str = ""
    """How to read it, and the n behind it."""
    alt: str = ""
    """The numbers in words, for who cannot see the figure; plain text like the title."""
    empty: str = ""
    """Why there is nothing to see and what to do; empty when there is."""
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {}

    def figure(self) -> go.Figure:
        """The picture as a validated Plotly figure with its title, for a report or a notebook."""
        import plotly.graph_objects as go  # noqa: PLC0415  (a second of import that the page never needs)

        from tailrace.figures.wording import plain  # noqa: PLC0415

        figure = go.Figure(data=self.data, layout=self.layout)
        text = plain(self.title, 200)
        figure.update_layout(title={"text": text, "subtitle": {"text": plain(self.note or self.empty, 300)}})
        return figure


def base_layout(theme: Theme, **more: Any) -> dict[str, Any]:
    """Colours, font and behaviour that all pictures share; `more` is laid over it."""
    ground = GROUND[theme]
    layout: dict[str, Any] = {
        "paper_bgcolor": ground["paper"],
        "plot_bgcolor": ground["paper"],
        "font": {"family": FONT, "size": 12, "color": ground["ink"]},
        "hoverlabel": {
            "bgcolor": ground["paper"],
            "bordercolor": ground["faint"],
            "font": {"family": FONT, "size": 12, "color": ground["ink"]},
            "align": "left",
        },
        # Constant, so that a reader's zoom and hidden legend entries survive each refresh.
        "uirevision": "keep",
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "dragmode": "zoom",
    }
    layout.update(more)
    return layout


def axis(theme: Theme, title: str = "", **more: Any) -> dict[str, Any]:
    """An axis with the shared grid and a title that carries the unit."""
    ground = GROUND[theme]
    out: dict[str, Any] = {
        "gridcolor": ground["grid"],
        "zerolinecolor": ground["grid"],
        "linecolor": ground["grid"],
        "tickfont": {"color": ground["faint"]},
        "automargin": True,
    }
    if title:
        out["title"] = {"text": title, "font": {"color": ground["faint"], "size": 12}, "standoff": 8}
    out.update(more)
    return out


def stage_marker(stage: str, theme: Theme) -> dict[str, Any]:
    """How a bar of a stage is filled: its colour, its hatch, and a hairline of the paper between neighbours."""
    paper = GROUND[theme]["paper"]
    color = stage_color(stage, theme)
    marker: dict[str, Any] = {"color": color, "line": {"color": paper, "width": 1}}
    hatch = stage_pattern(stage)
    if hatch:
        marker["pattern"] = {"shape": hatch, "fgcolor": paper, "fgopacity": 0.45, "bgcolor": color, "size": 7,
                             "solidity": 0.25}  # fmt: skip
    return marker


def legend() -> dict[str, Any]:
    """A legend in one or more lines below the figure (the page draws its own)."""
    return {"orientation": "h", "y": -0.3, "x": 0, "traceorder": "normal", "yanchor": "top"}
