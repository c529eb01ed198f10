"""The catalogue: each code is whole, fires on what it is, not on what looks like it, and is less sure with less."""

import ast
import re
from pathlib import Path

import pytest

from tailrace import diagnose
from tailrace.diagnose.cause import layer_of
from tailrace.diagnose.causes import CAUSES
from tailrace.model.finding import Layer, Level
from tests.diagnose.honesty import dishonest, runs, typed
from tests.diagnose.scenes import SCENES
from tests.diagnose.scenes.scene import asked

SURE = list(Level)
LONG_PROMPTS = ("SCHED_HOL_LONG_PREFILL", "SCHED_PREFILL_STEALS_DECODE", "MIX_SHIFT")
"""Codes behind which stand long prompts: shorter ones are always part of the advice."""


def place(finding) -> int:
    """0 for `proven`; silence comes after everything that is said."""
    return len(SURE) if finding is None else SURE.index(finding.level)


def test_every_code_has_its_scene():
    assert sorted(scene.code for scene in SCENES) == sorted({cause.code for cause in CAUSES})
    assert len(SCENES) >= 57


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.code)
def test_a_code_says_what_it_needs_and_what_would_disprove_it(cause):
    assert cause.needs
    assert all(len(text) > 5 for text in cause.needs)
    assert len(cause.disproof) > 20
    assert layer_of(cause.code) in Layer
    assert [item for item in CAUSES if item.code == cause.code] == [cause]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.code)
def test_a_code_fires_and_not_on_a_near_miss_and_less_surely_with_less(scene, tmp_path):
    whole = asked(scene, tmp_path / "whole").finding
    assert whole is not None
    assert place(whole) <= SURE.index(Level(scene.level)), (whole.level, whole.missing, whole.rivals)
    assert dishonest(whole) == []
    if whole.level is not Level.INSUFFICIENT:
        assert all((whole.relation, whole.advice, whole.price, whole.verify)), whole
        for line in typed(whole.verify):
            runs(line)
    if scene.code in LONG_PROMPTS:
        assert re.search(r"retrieve fewer chunks.*trim", whole.advice), whole.advice
        assert re.search(r"predicted TTFT|the TTFT", whole.advice), whole.advice

    near = asked(scene, tmp_path / "near", scene.near).finding
    assert near is None, (near.level, near.statement, near.missing)

    less, why_not = asked(scene, tmp_path / "less", scene.drop)
    assert place(less) > place(whole), (less.level, less.missing)
    if less is not None:
        assert dishonest(less) == []
    said = " ".join([why_not, *(() if less is None else less.missing)])
    if scene.missing:
        assert re.search(scene.missing, said, re.IGNORECASE), said
    else:
        assert less is None or less.level is Level.INSUFFICIENT


def literals():
    """Place -> the text of each `verify` that stands as such in a rule, or of a constant that holds a command."""
    for path in sorted(Path(diagnose.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            named = (
                isinstance(node, (ast.Assign, ast.AnnAssign)) and "tailrace " in ast.unparse(node.value or node)[:12]
            )
            if named or (isinstance(node, ast.keyword) and node.arg == "verify"):
                text = node.value
                while isinstance(text, ast.BinOp):
                    text = text.left
                first = text.values[0] if isinstance(text, ast.JoinedStr) else text
                if isinstance(first, ast.Constant) and first.value:
                    yield f"{path.name}:{text.lineno}", first.value, isinstance(node.value, ast.Constant)


def test_every_command_that_verifies_is_one_of_tailrace_and_can_be_typed():
    found = list(literals())
    assert len(found) >= 50
    for where, text, whole in found:
        assert text.startswith("tailrace "), where
        if whole:
            for line in typed(text):
                runs(line)
