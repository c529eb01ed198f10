"""The wheel that users install holds everything that the code needs."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tailrace"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


def test_every_file_of_the_package_is_in_it(wheel):
    ignored = {"__pycache__"}
    source = {
        str(path.relative_to(PACKAGE.parent))
        for path in PACKAGE.rglob("*")
        if path.is_file() and not ignored & set(path.parts)
    }
    packed = {name for name in wheel.namelist() if name.startswith("tailrace/")}
    assert packed == source
    assert "tailrace/py.typed" in packed


def test_static_files_of_the_page_are_in_it(wheel):
    static = [path for path in (PACKAGE / "web").rglob("*") if path.suffix in {".html", ".css", ".js", ".svg"}]
    assert static, "the page has static files"
    assert {str(path.relative_to(PACKAGE.parent)) for path in static} <= set(wheel.namelist())


def test_its_metadata(wheel):
    names = wheel.namelist()
    metadata = wheel.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert "Requires-Python: >=3.11" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert (
        "tailrace = tailrace.cli:main" in wheel.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    )


@pytest.mark.tier("ci")
@pytest.mark.long("makes a virtual environment and installs every dependency", timeout=600)
def test_it_installs_and_runs_in_a_new_environment(tmp_path):
    python, tailrace = tmp_path / "venv" / "bin" / "python", tmp_path / "venv" / "bin" / "tailrace"
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}

    def run(*command, **options):
        done = subprocess.run(
            [*map(str, command)], capture_output=True, text=True, check=False, cwd=tmp_path, **options
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    # Debian's Python comes without ensurepip, so the new environment is filled by the pip of this one.
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check", ROOT)
    assert "tailrace demo" in run(tailrace, "--help", env=env)
    # Every command's own help: imports it all with nothing but the declared dependencies.
    for name in run(python, "-c", "import tailrace.cli.catalogue as c; print(*c.COMMANDS)", env=env).split():
        assert "Usage" in run(tailrace, name, "--help", env=env)
    # Servers, children, run files and the gateway, from the installed package.
    assert '"ok":true' in run(tailrace, "selftest", "--scenario", "fast", "--json", env=env)
