"""What the docs tell people to type can be typed."""

import importlib
import re
import shlex
from pathlib import Path

import pytest
import typer.main
import yaml

from tailrace.app.check_config import judge_config
from tailrace.cli.catalogue import COMMANDS
from tailrace.cli.workload_file import read_workload
from tailrace.gateway.config import config_from
from tailrace.model.check import Weight
from tailrace.model.rules import rules_from

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def lines_of(pattern: str, flags: int = 0) -> dict[str, str]:
    """Command line -> the page where it is first shown."""
    out: dict[str, str] = {}
    for page in PAGES:
        for block in re.findall(pattern, page.read_text(), flags):
            for line in block.splitlines():
                plain = re.split(r"\s{2,}#|\s\|\s|\s&&\s", line.strip().removeprefix("$ "))[0].strip()
                if plain.startswith("tailrace ") and not re.search(r"\bCOMMAND\b|\[OPTIONS\]|…", plain):
                    out.setdefault(plain, str(page.relative_to(ROOT)))
    return out


WHOLE = lines_of(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL) | {
    entry.example: "the catalogue" for entry in COMMANDS.values()
}
"""Lines that stand alone: they must be complete."""
NAMED = lines_of(r"`(tailrace [^`\n]+)`")
"""Mentions inside a sentence: what they name must exist."""


def parsed(line: str):
    """(click command, its arguments) of a line."""
    name, *arguments = shlex.split(line)[1:]
    assert name in COMMANDS, f"there is no command {name!r}"
    command = typer.main.get_command(importlib.import_module(COMMANDS[name].module).app)
    nested = getattr(command, "commands", None)
    return (nested[arguments[0]], arguments[1:]) if nested and arguments else (command, arguments)


def test_commands_are_found_in_the_docs():
    assert len(WHOLE) >= 15
    assert len(NAMED) >= 8


@pytest.mark.parametrize("line", WHOLE)
def test_a_command_line_is_understood(line):
    command, arguments = parsed(line)
    # Parses as the command line does, and runs nothing. (No arguments at all would print the help.)
    with command.make_context("tailrace", arguments, resilient_parsing=not arguments) as context:
        assert context.params is not None


@pytest.mark.parametrize("line", [line for line in NAMED if not line.startswith("tailrace --")])
def test_what_a_sentence_names_exists(line):
    command, arguments = parsed(line)
    # What `ab` does not know itself it hands to `bench`.
    takes = [command, parsed("tailrace bench http://localhost")[0]] if command.name == "ab" else [command]
    params = [param for one in takes for param in getattr(one, "params", [])]
    known = {option for param in params for option in (*param.opts, *param.secondary_opts)}
    assert {one for one in arguments if one.startswith("-")} <= known | {"--help"}


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in PAGES[1:] if str(page.relative_to(ROOT / "docs")) not in navigation] == []


FILES = {
    f"{page.relative_to(ROOT)}:{page.read_text()[: block.start()].count(chr(10)) + 1}": block[1]
    for page in PAGES
    for block in re.finditer(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
}
"""Place -> each configuration, or part of one, that a page shows."""
WORKLOADS = {
    place: FILES.pop(place) for place in [place for place, text in FILES.items() if text.startswith("classes:")]
}
"""Place -> each workload that a page shows."""
ENGINES = [{"name": name, "url": f"http://10.0.0.{at}:8000"} for at, name in enumerate(["today", "next"])]


@pytest.mark.parametrize("place", FILES)
def test_a_configuration_that_a_page_shows_is_valid_and_does_what_it_says(place, monkeypatch, tmp_path):
    monkeypatch.setenv("WEB_KEY", "secret")
    shown = yaml.safe_load(FILES[place])
    if FILES[place].startswith("# rules.yaml"):  # of a comparison: no configuration, but rules
        assert rules_from(shown, place)
        return
    for model in shown.get("tokens", {}).get("tokenizers", {}):
        (tmp_path / "tokenizer.json").touch()
        shown["tokens"]["tokenizers"][model] = str(tmp_path)
    for one in shown.get("backends", []):
        one.pop("tls", None)  # its files are the reader's
    config = config_from({"backends": ENGINES, **shown})
    assert [one.statement for one in judge_config(config, place) if one.weight in (Weight.ERROR, Weight.WARNING)] == []


@pytest.mark.parametrize("place", WORKLOADS)
def test_a_workload_that_a_page_shows_is_understood(place, tmp_path):
    file = tmp_path / "work.yaml"
    file.write_text(WORKLOADS[place])
    assert read_workload(str(file)).classes


def test_a_workload_is_found_in_the_docs():
    assert WORKLOADS
