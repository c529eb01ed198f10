"""The shape of the project: floors, what they may know, and that the tree stays readable."""

import ast
import importlib
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace
from tailrace.cli.catalogue import COMMANDS, render_help
from tailrace.model.outcome import REASON_KIND, OutcomeKind, Reason
from tailrace.model.stage import Stage
from tailrace.stages import REPORTABLE
from tests.children import child_env, tailrace_command

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tailrace"
SOURCES = sorted(PACKAGE.rglob("*.py"))
FLOORS = [
    "model",
    "stages",
    "stats",
    "measure",
    "govern",
    "engines",
    "workload",
    "simulate",
    "store",
    "analyze",
    "diagnose",
    "figures",
    "export",
    "gateway",
    "probe",
    "speech",
    "simserve",
    "chaos",
    "web",
    "app",
    "cli",
    "testing",
]
LONG_FILE = 600
LONG_REASON = re.compile(r"^# More than 600 lines because \w.{20,}", re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# -- floors


def test_every_floor_is_there_and_no_other():
    found = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert found == set(FLOORS)


@pytest.mark.parametrize("floor", FLOORS)
def test_a_floor_says_in_a_few_lines_what_lives_there(floor):
    docstring = ast.get_docstring(ast.parse((PACKAGE / floor / "__init__.py").read_text()))
    assert docstring
    assert len(docstring.splitlines()) <= 10


def test_the_package_docstring_is_a_glossary_of_at_most_twelve_nouns():
    nouns = re.findall(r"^\* \*\*(.+?)\*\*:", tailrace.__doc__ or "", re.MULTILINE)
    assert 6 <= len(nouns) <= 12
    assert len(set(nouns)) == len(nouns)


def test_the_floors_are_kept():
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(lint), "--no-cache"], cwd=ROOT, env=child_env(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("tailrace", ["msgspec", "numpy", "duckdb", "plotly", "scipy", "aiohttp", "rich", "typer"]),
        ("tailrace.model", ["numpy", "duckdb", "plotly", "scipy", "aiohttp", "asyncio"]),
        ("tailrace.model.record", ["numpy", "duckdb", "plotly", "scipy", "aiohttp", "asyncio"]),
        ("tailrace.stages", ["msgspec", "numpy", "aiohttp", "tailrace.model", "tailrace.measure"]),
        ("tailrace.stages.asgi", ["msgspec", "numpy", "aiohttp", "tailrace.model", "tailrace.measure"]),
        ("tailrace.stages.wsgi", ["msgspec", "numpy", "aiohttp", "tailrace.model", "tailrace.measure"]),
        ("tailrace.cli", ["typer", "rich", "numpy", "duckdb", "plotly", "scipy", "aiohttp"]),
    ],
)
def test_an_import_stays_light(module, absent):
    code = f"import sys, {module}; print(*[name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], env=child_env(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_service_that_imports_stages_gets_the_standard_library_and_nothing_else_of_tailrace():
    code = (
        "import sys; before = set(sys.modules); import tailrace.stages.asgi, tailrace.stages.wsgi;"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names);"
        "print(*sorted(new), *sorted(n for n in sys.modules if n.startswith('tailrace.') and '.stages' not in n))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=child_env(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["tailrace"]


def test_the_package_exports_lazily_what_it_says():
    for name in tailrace.__all__:
        assert getattr(tailrace, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tailrace.nothing


# -- closed sets


def test_every_reason_belongs_to_one_outcome():
    assert set(REASON_KIND) == set(Reason)
    assert set(REASON_KIND.values()) == set(OutcomeKind)
    assert [reason for reason in Reason if REASON_KIND[reason] is OutcomeKind.COMPLETED] == [Reason.NONE]


def test_a_service_reports_stages_that_exist():
    assert set(REPORTABLE) < {str(stage) for stage in Stage}


# -- the command line


def test_the_catalogue_and_the_modules_are_the_same_set():
    """A module of `cli` with an `app` is a command; the others print for one."""
    commands = {
        path.stem for path in (PACKAGE / "cli").glob("*.py") if re.search(r"^app = ", path.read_text(), re.MULTILINE)
    }
    assert set(COMMANDS) == commands


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_an_app_help_and_an_example(command):
    entry = COMMANDS[command]
    assert entry.module == f"tailrace.cli.{command}"
    assert entry.example.startswith(f"tailrace {command}")
    assert 0 < len(entry.help) <= 70
    import typer

    assert isinstance(importlib.import_module(entry.module).app, typer.Typer)


def test_help_names_every_command_and_costs_little():
    assert all(f"\n  {name} " in render_help() for name in COMMANDS)
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(tailrace_command("--help"), env=child_env(), check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    # The least of five: whatever else the machine does can only add.
    assert min(seconds) < 0.3, seconds


# -- readability


def test_no_file_is_long_without_a_reason():
    long = {
        name_of(path): count
        for path in SOURCES
        if (count := len((text := path.read_text()).splitlines())) > LONG_FILE and not LONG_REASON.search(text)
    }
    assert long == {}, "split it, or say at its top `# More than 600 lines because …`"


def test_no_file_name_is_vague():
    vague = {"utils", "util", "helpers", "helper", "common", "manager", "types", "misc"}
    assert [name_of(path) for path in SOURCES if path.stem in vague] == []


def test_every_module_says_what_it_is():
    assert [name_of(path) for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_tests_mirror_the_tree():
    folders = {path.parent.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/**/test_*.py")}
    assert folders <= {*FLOORS, "peers", "real", "selftest", "wire"}
    for floor in FLOORS:
        if [path for path in (PACKAGE / floor).rglob("*.py") if path.name != "__init__.py"]:
            assert list((ROOT / "tests" / floor).rglob("test_*.py")), f"src/tailrace/{floor} has code and no test"


def test_nothing_below_the_edges_is_mocked():
    mocking = re.compile(r"unittest\.mock|from unittest import mock|\bMagicMock\b")
    here = Path(__file__)
    assert [name_of(p) for p in (ROOT / "tests").rglob("*.py") if p != here and mocking.search(p.read_text())] == []


def test_whoever_decodes_foreign_json_expects_all_that_a_decoder_raises():
    """Brackets nested a thousand deep are a RecursionError, broken UTF-8 is a UnicodeDecodeError."""
    half = []
    for path in SOURCES:
        lines = path.read_text().splitlines()
        for at, line in enumerate(lines):
            if not re.match(r"\s*except .*msgspec\.(Decode|Msgspec)Error", line):
                continue
            handled = "".join(lines[at - 2 : at + 1])  # the clause before may take one of them
            if "RecursionError" not in handled or not re.search("UnicodeDecodeError|ValueError", handled):
                half.append(f"{path.relative_to(PACKAGE)}: {line.strip()}")
    assert half == []
