"""The list of vLLM's options that ships, and what this tool refuses, against the program itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tailrace.app.check import CheckRequest, check
from tailrace.app.check_source import run_help
from tailrace.engines.flags.tables import option_table
from tailrace.engines.flags.vllm_history import CHANGES, Fate
from tests.conftest import vllm_python

pytestmark = [
    pytest.mark.tier("all"),
    pytest.mark.needs("vllm"),
    pytest.mark.long("vLLM takes ten seconds and more to print its options", timeout=240),
]


@pytest.fixture(scope="module")
def program() -> str:
    python = vllm_python()
    assert python is not None, 'mark this test with needs("vllm")'
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    return str(Path(python).with_name("vllm"))


@pytest.fixture(scope="module")
def helped(program):
    return run_help(program)


def test_our_list_is_the_program_s_own(helped):
    ours = option_table("vllm")
    assert {one.name for one in ours.options} == {one.name for one in helped.options} - {"--help"}
    for option in ours.options:
        theirs = helped.find(option.name).option
        assert option.takes is theirs.takes, option.name
        assert set(option.aliases) == set(theirs.aliases), option.name
        if option.choices:
            assert option.choices == theirs.choices, option.name


def test_the_program_has_what_its_history_says(helped):
    for name, change in CHANGES.items():
        assert (name in helped) is (change.fate(None) is Fate.THERE), name


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--enable-chunked-prefill", "auto"], "CHUNKED_PREFILL_VALUE", "unrecognized arguments: auto"),
        (["--enable-chunked-prefill=auto"], "CHUNKED_PREFILL_VALUE", "ignored explicit argument 'auto'"),
        (["--swap-space", "4"], "OPTION_REMOVED", "unrecognized arguments: --swap-space"),
        (["--scheduling-policy", "lifo"], "OPTION_VALUE", "invalid choice: 'lifo'"),
    ],
)
def test_what_is_called_an_error_is_refused(program, options, code, words):
    report = check(CheckRequest(commands=[" ".join(["vllm", "serve", "m", *options])], version="0.32.0"))
    assert code in {one.code for one in report.findings if one.weight == "error"}
    done = subprocess.run([program, "serve", "m", *options], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert words in done.stderr
