"""The test harness itself: children get their own group, ready lines are read, leftovers are seen."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.children import SESSION_MARK, Child, ChildError, child_env, leftovers, run_tailrace

READY = (
    "import json,os,time;print(json.dumps({'ready':True,'url':'http://127.0.0.1:1/','pid':os.getpid()}),flush=True);"
)


def test_ready_line_is_read_and_the_child_stopped(start_child):
    child: Child = start_child(sys.executable, "-c", READY + "time.sleep(60)")
    child.wait_ready(20)
    assert child.ready["pid"] == child.pid
    assert child.url == "http://127.0.0.1:1"
    assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
    assert child.stop() == -15


def test_a_child_that_ends_before_it_is_ready_tells_its_story(start_child):
    child: Child = start_child(sys.executable, "-c", "import sys;sys.exit('no such upstream')")
    with pytest.raises(ChildError, match=r"exit code 1(.|\n)*no such upstream"):
        child.wait_ready(20)


def test_a_grandchild_dies_with_its_group(start_child):
    code = "import subprocess,sys,json;p=subprocess.Popen([sys.executable,'-c','import time;time.sleep(60)']);"
    child: Child = start_child(
        sys.executable, "-c", code + "print(json.dumps({'grandchild':p.pid}),flush=True);p.wait()"
    )
    child.wait_ready(20)
    grandchild = child.ready["grandchild"]
    _until(lambda: grandchild in _ours(), "the grandchild never carried the session's mark")
    child.stop()
    _until(lambda: grandchild not in _ours(), "the grandchild outlived its group")


def _ours() -> set[int]:
    return {pid for pid, _ in leftovers(os.environ[SESSION_MARK], patience=0)}


def _until(true, otherwise: str) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def test_run_tailrace_returns_output_and_code():
    done = run_tailrace("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("tailrace ")
    wrong = run_tailrace("dignose")
    assert wrong.returncode == 2
    assert "tailrace diagnose" in wrong.stderr


SAMPLE = """
import subprocess, sys
import pytest

@pytest.mark.needs("shared")
def test_needs():
    pass

@pytest.mark.tier("ci")
def test_ci_only():
    pass

@pytest.mark.long("reads its own limit", timeout=77)
def test_long(request):
    assert request.node.get_closest_marker("timeout").args == (77,)

def test_leaves_a_child():
    if LEAVE:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
"""


def _session(tmp_path: Path, tier: str, *, shared: Path, leave: bool = False) -> subprocess.CompletedProcess[str]:
    (tmp_path / "test_sample.py").write_text(SAMPLE.replace("LEAVE", str(leave)))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  needs\n  tier\n  long\n")
    root = str(Path(__file__).parent.parent)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-rs", str(tmp_path)]
    env = child_env(TAILRACE_TIER=tier, TAILRACE_SHARED=str(shared))
    env["PYTHONPATH"] = os.pathsep.join([root, env["PYTHONPATH"]])
    return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)


def test_an_absent_need_skips_with_a_reason_on_tier_test(tmp_path):
    done = _session(tmp_path, "test", shared=tmp_path / "nowhere")
    assert done.returncode == 0, done.stdout
    assert "2 passed, 1 skipped, 1 deselected" in done.stdout
    assert "no shared data at" in done.stdout


def test_an_absent_need_fails_on_tier_ci(tmp_path):
    done = _session(tmp_path, "ci", shared=tmp_path / "nowhere")
    assert done.returncode == 1
    assert "tier ci must have everything: no shared data at" in done.stdout


def test_a_present_need_runs(tmp_path):
    (tmp_path / "facts").mkdir()
    done = _session(tmp_path, "ci", shared=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_a_process_left_behind_fails_the_session(tmp_path):
    done = _session(tmp_path, "test", shared=tmp_path, leave=True)
    assert done.returncode == 1
    assert "processes left behind" in done.stdout
    assert "time.sleep(60)" in done.stdout
