"""Output caps, limits of prompts, and both held tighter under load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.govern.token_limits import UNLIMITED, OutputCap, OutputCaps, Over, TokenLimits, cap_output

_counts = st.none() | st.integers(1, 10_000)


@pytest.mark.parametrize(
    ("limits", "asked", "copies", "cap"),
    [
        (TokenLimits(), 10_000, 1, None),
        (TokenLimits(max_output=500), 400, 1, None),
        (TokenLimits(max_output=500), 501, 1, OutputCap(500, 501)),
        (TokenLimits(max_output=500), None, 1, OutputCap(500, None)),
        (TokenLimits(max_output=500), 200, 4, OutputCap(125, 200)),
        (TokenLimits(max_output=3), 200, 8, OutputCap(1, 200)),
        (TokenLimits(default_output=64), None, 1, OutputCap(64, None)),
        (TokenLimits(default_output=64), 9000, 1, None),
        (TokenLimits(default_output=64, max_output=100), None, 2, OutputCap(50, None)),
    ],
)
def test_what_is_written_into_a_request(
    limits: TokenLimits, asked: int | None, copies: int, cap: OutputCap | None
) -> None:
    assert cap_output(limits, asked, copies) == cap


@given(
    st.builds(TokenLimits, max_output=_counts, default_output=_counts),
    st.none() | st.integers(0, 10**6),
    st.integers(1, 20),
)
def test_a_cap_never_gives_more(limits: TokenLimits, asked: int | None, copies: int) -> None:
    cap = cap_output(limits, asked, copies)
    each = asked if cap is None else cap.each
    if cap is not None and asked is not None:
        assert cap.each < asked
    if limits.max_output is not None:
        assert each is not None
        assert each <= max(1, limits.max_output // copies)
        assert cap_output(limits, each, copies) is None


def test_refused_or_shortened() -> None:
    refuse = TokenLimits(max_prompt=100)
    assert refuse.refuses(101)
    assert not refuse.refuses(100)
    assert refuse.cut_to(101) is None
    cut = TokenLimits(max_prompt=100, over=Over.TRUNCATE)
    assert not cut.refuses(101)
    assert (cut.cut_to(100), cut.cut_to(101)) == (None, 100)


def test_under_load_lanes_are_held_tighter_and_let_go() -> None:
    caps = OutputCaps()
    limits = TokenLimits(max_prompt=1000, max_output=800, default_output=400)
    assert caps.idle
    assert caps.applied("chat", limits, can_cut=True) is limits
    caps.set("chat", output_factor=0.5, prompt_to=300)
    held = caps.applied("chat", limits, can_cut=True)
    assert (held.max_output, held.default_output) == (400, 200)
    assert (held.cut_to(200), held.cut_to(500)) == (None, 300)
    assert held.refuses(1001), "what the configuration refuses is not let in shortened"
    assert caps.applied("chat", limits, can_cut=False).cut_to(500) is None
    assert caps.applied("other", limits, can_cut=True) is limits
    caps.set(output_cap=64)
    assert caps.applied("other", UNLIMITED, can_cut=True).max_output == 64
    caps.lift("chat")
    assert caps.applied("chat", limits, can_cut=True).max_output == 64
    caps.lift()
    assert caps.idle
    assert caps.applied("chat", limits, can_cut=True) is limits


def test_setting_nothing_lets_go() -> None:
    caps = OutputCaps()
    caps.set("chat", output_cap=5)
    changes = caps.changes
    caps.set("chat")
    assert caps.idle
    assert caps.changes == changes + 1


@pytest.mark.parametrize(
    "wrong", [{"output_factor": 0.0}, {"output_factor": 1.1}, {"output_cap": 0}, {"prompt_to": 0}, {"prompt_to": -3}]
)
def test_what_cannot_be_held(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"factor|cap"):
        OutputCaps().set("chat", **wrong)  # type: ignore[arg-type]
