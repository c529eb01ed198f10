"""The palette's promises, recomputed: contrast, and neighbours that stay apart for every kind of sight."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tailrace.figures.palette import (
    GROUND,
    HEAT,
    STAGE_COLORS,
    luminance,
    readable_on,
    stage_color,
    stage_pattern,
)
from tailrace.model.stage import QUEUE_ENGINE, QUEUE_GATEWAY, STAGES

THEMES = ("light", "dark")
# Machado, Oliveira, Fernandes 2009, severity 1.0, on linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
# Ottosson 2020, linear sRGB -> OKLab.
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
# In the order of life, and those that touch because what lies between them is absent or too short to see.
NEIGHBOURS = [
    *itertools.pairwise(map(str, STAGES)),
    ("decode", "postprocess"),
    ("preprocess", "model"),
    ("model", "response"),
    ("model", "unattributed"),
    ("ingress", "prefill"),
    ("queue", "prefill"),
    ("queue", "decode"),
    ("queue", "encode"),
    ("prefill", "unattributed"),
    ("decode", "response"),
    ("decode", "unattributed"),
]


def linear(color: str) -> np.ndarray:
    channels = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def apart(one: str, other: str, sight: np.ndarray) -> float:
    first, second = (TO_LAB @ np.cbrt(TO_CONES @ np.clip(sight @ linear(color), 0, 1)) for color in (one, other))
    return float(np.linalg.norm(first - second))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_every_stage_has_a_colour_that_stands_out_of_its_ground(theme):
    assert set(STAGE_COLORS[theme]) == set(STAGES)
    for stage, color in STAGE_COLORS[theme].items():
        assert contrast(color, GROUND[theme]["paper"]) >= 3.0, stage


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("theme", THEMES)
def test_stages_that_touch_stay_apart(theme, sight):
    for one, other in NEIGHBOURS:
        distance = apart(stage_color(one, theme), stage_color(other, theme), SIGHT[sight])
        assert distance >= (0.115 if sight == "tritanopia" else 0.15), (one, other, round(distance, 3))


@pytest.mark.parametrize("theme", THEMES)
def test_text_on_grounds_and_segments_is_readable(theme):
    ground = GROUND[theme]
    for text in ("ink", "faint"):
        assert contrast(ground[text], ground["paper"]) >= 4.5, text
        assert contrast(ground[text], ground["missing"]) >= 4.5, text
    for color in STAGE_COLORS[theme].values():
        assert contrast(readable_on(color), color) >= 4.5, color


@pytest.mark.parametrize("theme", THEMES)
def test_heat_moves_away_from_its_ground(theme):
    distances = [contrast(color, GROUND[theme]["paper"]) for _, color in HEAT[theme]]
    assert distances == sorted(distances)
    assert [place for place, _ in HEAT[theme]][0::3] == [0.0, 1.0]


def test_parts_have_their_stage_colour_and_differ_by_hatch():
    assert stage_color(QUEUE_GATEWAY) == stage_color(QUEUE_ENGINE) == stage_color("queue")
    assert stage_pattern(QUEUE_GATEWAY) != stage_pattern(QUEUE_ENGINE)
    assert stage_color("something else") == stage_color("unattributed")
