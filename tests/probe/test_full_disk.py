"""The disk fills up while a load goes on: the run ends at once, says so, and what was written is readable."""

import subprocess
import sys
import time

from tailrace.store.run_file import read_run
from tests.children import child_env
from tests.probe.raw_server import RawServer, serving


def test_a_full_disk_ends_the_run_and_keeps_what_was_measured(tmp_path):
    async def script(call):
        await call.answer(tokens=3)

    out = tmp_path / "a.run"
    command = [
        *(sys.executable, "-m", "tailrace", "bench", "URL", "--concurrency", "4", "--requests", "100000"),
        *("--duration", "60", "--prompt-tokens", "10", "--output-tokens", "3", "--processes", "1"),
        *("--out", str(out), "--json"),
    ]
    with serving(RawServer(script)) as server:
        command[4] = server.url
        began = time.monotonic()
        # A limit on the size of files refuses a write in its middle, as a full disk does; in KiB.
        done = subprocess.run(
            ["bash", "-c", 'ulimit -f 24; exec "$@"', "bash", *command],
            capture_output=True,
            text=True,
            env=child_env(),
            timeout=19,
            check=False,
        )
        took = time.monotonic() - began
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert f"{out}: cannot write the run file: File too large" in done.stderr
    assert "--partial" in done.stderr
    assert took < 15, "it must not go on for its minute"
    run = read_run(out, allow_partial=True)
    assert f"The first {len(run.records)} requests are in it" in done.stderr
    assert len(run.records) >= 30
    assert "ends without its trailer" in run.problem
