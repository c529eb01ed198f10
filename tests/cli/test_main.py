"""The command line itself: what is typed wrong is told in one sentence, with exit code 2 and no traceback."""

import importlib
import io
import sys

import pytest
import typer

from tailrace import __version__
from tailrace.cli import main
from tailrace.cli.catalogue import COMMANDS, Command, render_help
from tailrace.model.errors import ConfigError, StoreError
from tests.children import run_tailrace


def left(capsys, *argv):
    """(exit code, standard output, standard error) of a command line."""
    with pytest.raises(SystemExit) as gone:
        main(argv)
    out, err = capsys.readouterr()
    return gone.value.code, out, err


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_help_is_the_catalogue(capsys, argv):
    assert left(capsys, *argv) == (0, render_help(), "")


@pytest.mark.parametrize("argv", [["--version"], ["-V"]])
def test_version(capsys, argv):
    assert left(capsys, *argv) == (0, f"tailrace {__version__}\n", "")


@pytest.mark.parametrize(("typed", "meant"), [("bnech", "bench"), ("diagnos", "diagnose"), ("comparE", "compare")])
def test_a_mistyped_command_is_guessed(capsys, typed, meant):
    code, out, err = left(capsys, typed)
    assert (code, out) == (2, "")
    assert err == f"tailrace: there is no command {typed!r}. Did you mean `tailrace {meant}`?\n"


def test_an_unknown_command_points_to_the_help(capsys):
    code, _, err = left(capsys, "xyzzy")
    assert code == 2
    assert err.endswith("`tailrace --help` lists the commands.\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name):
    done = run_tailrace(name, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_a_usage_error(name):
    done = run_tailrace(name, "--no-such-option")
    assert done.returncode == 2
    assert "no-such-option" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def command(monkeypatch):
    """Put a command that runs `function` into the catalogue, as `probe-command`."""

    def put(function):
        app = typer.Typer(add_completion=False)
        app.command()(function)
        module = type(sys)("tailrace.cli.of_a_test")
        module.app = app
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(COMMANDS, "probe-command", Command("run", "", "", module.__name__))
        assert importlib.import_module(module.__name__) is module
        return "probe-command"

    return put


def test_wrong_input_is_one_sentence(capsys, command):
    def run():
        raise ConfigError("there is no key 'runing' here", place="tailrace.yaml: lanes[0]", remedy="Write `running`.")

    code, out, err = left(capsys, command(run))
    assert (code, out) == (2, "")
    assert err == "tailrace probe-command: tailrace.yaml: lanes[0]: there is no key 'runing' here. Write `running`.\n"


def test_another_failure_of_ours_is_one_sentence_too(capsys, command):
    def run():
        raise StoreError("the disk is full")

    assert left(capsys, command(run)) == (1, "", "tailrace probe-command: the disk is full\n")


def test_a_bug_is_not_hidden(command):
    def run():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        main([command(run)])


def test_exit_codes_of_commands_are_kept(capsys, command):
    def run():
        raise typer.Exit(3)

    assert left(capsys, command(run))[0] == 3


def test_an_interrupt_is_130(capsys, command):
    def run():
        raise KeyboardInterrupt

    assert left(capsys, command(run))[0] == 130


def test_a_reader_that_left_is_no_error(monkeypatch, command):
    def run():
        raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with pytest.raises(SystemExit) as gone:
        main([command(run)])
    assert gone.value.code == 0
