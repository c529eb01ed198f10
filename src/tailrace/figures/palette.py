"""Colours: one per stage, the same in every figure, table and terminal, for light and for dark ground.

Chosen by search in OKLab so that stages which touch each other in a stacked bar stay apart for normal sight and
for protanopia, deuteranopia and tritanopia (Machado et al. 2009), and each stands out of its ground at 3:1
(WCAG 2.2, 1.4.11). `tests/figures/test_palette.py` recomputes all of that. Colour is never the only sign: bars
are labelled, and parts and `unattributed` carry a hatch.
"""

from __future__ import annotations

from typing import Final, Literal

from tailrace.model.stage import QUEUE_ENGINE, QUEUE_GATEWAY, Stage

Theme = Literal["light", "dark"]

STAGE_COLORS: Final[dict[Theme, dict[str, str]]] = {
    "light": {
        Stage.INGRESS: "#557291",
        Stage.QUEUE: "#d67f0a",
        Stage.PREPROCESS: "#624e00",
        Stage.ENCODE: "#d22486",
        Stage.PREFILL: "#0e2669",
        Stage.DECODE: "#006c59",
        Stage.MODEL: "#480c42",
        Stage.POSTPROCESS: "#4694c6",
        Stage.RESPONSE: "#7837b9",
        Stage.UNATTRIBUTED: "#919397",
    },
    "dark": {
        Stage.INGRESS: "#aeb1c3",
        Stage.QUEUE: "#f59400",
        Stage.PREPROCESS: "#f4eaa9",
        Stage.ENCODE: "#c63b8b",
        Stage.PREFILL: "#5180fb",
        Stage.DECODE: "#007745",
        Stage.MODEL: "#54ae72",
        Stage.POSTPROCESS: "#82ccff",
        Stage.RESPONSE: "#9769c6",
        Stage.UNATTRIBUTED: "#d7d9dd",
    },
}
"""Theme -> stage -> colour. A part has its stage's colour and a hatch of its own."""

STAGE_PATTERNS: Final[dict[str, str]] = {
    QUEUE_GATEWAY: "/",
    QUEUE_ENGINE: "",
    Stage.UNATTRIBUTED: "x",
}
"""Hatch (Plotly's pattern shapes) of the stages and parts that have one."""

GROUND: Final[dict[Theme, dict[str, str]]] = {
    "light": {"paper": "#ffffff", "ink": "#1b1f24", "faint": "#59636e", "grid": "#e3e7ec", "missing": "#eef0f3"},
    "dark": {"paper": "#14181f", "ink": "#e8ebef", "faint": "#9aa5b1", "grid": "#2a313b", "missing": "#20262f"},
}
"""What figures stand on: paper, text, faint text, grid lines, cells without enough data."""

HEAT: Final[dict[Theme, list[tuple[float, str]]]] = {
    "light": [(0.0, "#fdf0dd"), (0.35, "#f6b866"), (0.7, "#d2620c"), (1.0, "#7a2500")],
    "dark": [(0.0, "#2b2219"), (0.35, "#7a4512"), (0.7, "#d2761a"), (1.0, "#ffd9a0")],
}
"""One hue, lightness monotone: a higher latency is further from the ground."""


CLASS_STAGES: Final = (Stage.QUEUE, Stage.PREFILL, Stage.DECODE, Stage.ENCODE, Stage.POSTPROCESS, Stage.RESPONSE)
"""Classes of traffic take these stages' colours in turn (never in one figure with stages): neighbours stay apart."""
CLASS_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
CLASS_SYMBOLS: Final = ("circle", "diamond", "square", "triangle-up", "triangle-down", "pentagon")
FAILED: Final[dict[Theme, str]] = {"light": "#8c1022", "dark": "#ffb3bb"}
"""What did not complete, in figures over time; always with a mark of its own, as colour is never the only sign."""


def class_color(place: int, theme: Theme = "light") -> str:
    """The colour of the class at `place` of a figure's legend."""
    return STAGE_COLORS[theme][CLASS_STAGES[place % len(CLASS_STAGES)]]


def stage_color(stage: str, theme: Theme = "light") -> str:
    """The colour of a stage or of a part (`queue.engine` has the colour of `queue`)."""
    colors = STAGE_COLORS[theme]
    return colors.get(stage.partition(".")[0], colors[Stage.UNATTRIBUTED])


def stage_pattern(stage: str) -> str:
    """The hatch of a stage or part, empty where it is filled solid."""
    return STAGE_PATTERNS.get(stage, "")


def readable_on(color: str) -> str:
    """Black or white, whichever contrasts more with `color` (WCAG relative luminance)."""
    return "#000000" if luminance(color) > 0.179 else "#ffffff"


def luminance(color: str) -> float:
    """WCAG relative luminance of `#rrggbb`, 0 (black) to 1 (white)."""
    channels = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
