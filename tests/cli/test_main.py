"""The command line as a whole: help, typos, bad input, and what every command owes."""

from __future__ import annotations

import gc
import json
import subprocess

import pytest

from tailrace.cli.catalogue import COMMANDS
from tailrace.cli.durations import parse_span
from tailrace.cli.rarely_collected import rarely_collected
from tailrace.cli.traffic import classes_from, trace_file
from tailrace.model.errors import InputError
from tailrace.model.thresholds import MS, S
from tests.children import child_env, tailrace_command


def run(*args: str, timeout: float = 15) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*tailrace_command(), *args], capture_output=True, text=True, timeout=timeout, env=child_env(), check=False
    )


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",), ("help",)])
def test_help_lists_every_command(args):
    done = run(*args)
    assert done.returncode == 0
    assert all(f"  {name}" in done.stdout for name in COMMANDS)


def test_version():
    done = run("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "tailrace")


def test_a_typo_is_answered_with_the_nearest_command():
    done = run("diganose")
    assert done.returncode == 2
    assert "tailrace diagnose" in done.stderr


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself_with_an_example(command):
    done = run(command, "--help")
    assert done.returncode == 0
    assert f"Example:\n    tailrace {command}" in done.stdout


@pytest.mark.parametrize(
    "args", [(), *((name,) for name in sorted(COMMANDS)), ("records", "query"), ("records", "export")]
)
def test_help_fits_a_terminal_of_80_columns_and_cuts_nothing(args):
    done = run(*args, "--help")
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    assert "…" not in done.stdout


@pytest.mark.parametrize(
    ("args", "place", "remedy"),
    [
        (("bench", "http://127.0.0.1:9", "--requests", "1"), "127.0.0.1:9", ""),
        (("bench", "ftp://example", "--requests", "1"), "ftp://example", "http"),
        (("compare", "absent.run", "absent.run"), "absent.run", ""),
        (("diagnose", "absent.run"), "absent.run", ""),
        (("serve",), "--upstream", "--upstream http"),
        (("serve", "--upstream", "localhost:8000"), "", "http://127.0.0.1:8000"),
        (("serve", "-c", "absent.yaml"), "absent.yaml", "YAML"),
        (("engine", "--preset", "tpu"), "--preset", "a100-llama3-8b"),
        (("simulate", "--rate", "5", "--mix", "nonsense"), "--mix", "chat"),
        (("top", "http://127.0.0.1:9", "--once"), "127.0.0.1:9", ""),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(tmp_path, args, place, remedy):
    done = subprocess.run(
        [*tailrace_command(), *args],
        capture_output=True,
        text=True,
        timeout=20,
        env=child_env(),
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert place in done.stderr
    assert remedy in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_option_that_does_not_exist_is_exit_2():
    done = run("bench", "--cocnurrency", "3")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_is_no_error():
    script = f"set -o pipefail; {' '.join(tailrace_command())} simulate --rate 5 --requests 200 --json | true"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=19, env=child_env(), check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("redirected", "status", "says"),
    [
        (">/dev/full", 2, "the output: No space left on device"),
        ("--json >/dev/full", 2, "the output: No space left on device"),
        ("--fail-on found >&-", 1, ""),
        ("--json >&-", 0, ""),
        ("- <&-", 2, "standard input"),
        ("--column x 2>&-", 2, ""),
    ],
)
def test_streams_that_are_full_closed_or_left_end_in_a_sentence(redirected, status, says):
    script = f"set -o pipefail; {' '.join(tailrace_command())} diagnose --facts ttft_p99_ms=-5 {redirected}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=19, env=child_env(), check=False
    )
    assert done.returncode == status, done.stderr
    assert says in done.stderr
    assert done.stderr.count("\n") <= 1, done.stderr


def test_json_is_the_only_thing_on_stdout():
    done = run("simulate", "--rate", "5", "--requests", "200", "--json")
    assert json.loads(done.stdout)["n"] == 200


@pytest.mark.parametrize(
    ("text", "ns"), [("60", 60 * S), ("90s", 90 * S), ("250ms", 250 * MS), ("1.5m", 90 * S), ("7d", 604_800 * S)]
)
def test_spans(text, ns):
    assert parse_span(text, place="--x") == ns


@pytest.mark.parametrize("text", ["", "soon", "-3s", "0", "3 parsecs", "1e400s"])
def test_a_span_that_is_none_names_its_option(text):
    with pytest.raises(InputError) as caught:
        parse_span(text, place="--duration")
    assert caught.value.place == "--duration"


def test_where_nobody_knows_the_unit_a_bare_number_is_refused():
    with pytest.raises(InputError, match="30m"):
        parse_span("30", place="--older-than", bare_seconds=False)


def test_only_one_option_gives_the_lengths():
    with pytest.raises(InputError, match="only one of"):
        classes_from(mix="chat", prompt_tokens="3", output_tokens=None, trace=False, default="chat")
    assert classes_from(mix=None, prompt_tokens=None, output_tokens=None, trace=True, default="chat") == []


def test_a_trace_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match="not a data directory"):
        trace_file(str(tmp_path), speed=1.0, seed=0)
    with pytest.raises(InputError, match="cannot be read"):
        trace_file(str(tmp_path / "missing.csv"), speed=1.0, seed=0)


def test_the_collector_is_as_before_behind_a_command_that_looks_for_garbage_rarely():
    before = gc.get_threshold()
    with rarely_collected():
        assert gc.get_threshold()[0] > 10 * before[0]
    assert gc.get_threshold() == before
    with pytest.raises(InputError), rarely_collected():
        raise InputError("no")
    assert gc.get_threshold() == before
