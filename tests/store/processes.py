"""Real processes for tests of the store: a writer that reports what was acknowledged, and sealers that crash.

`python -m tests.store.processes write DIR STEP WHERE` writes records until it is killed. STEP is a step of the sealing
protocol (or `none`), WHERE is `writer`, `sealer` or `orphan`, the process in which that step kills:

* `writer`: the writing process kills itself
* `sealer`: the sealing process kills its parent and itself
* `orphan`: the sealing process kills its parent, works on for a moment, and finishes its job as an orphan
"""

import os
import signal
import sys
import time
from pathlib import Path

import tailrace

ROOT = Path(__file__).parents[2]


def child_environment():
    """The environment in which a child finds the package and the tests, installed or not."""
    source = Path(tailrace.__file__).parents[1]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(ROOT)])}


def killer(step, where, *, skip=0):
    """A step callback that kills at the `skip`-th passing of a step."""
    left = [skip]

    def on_step(name):
        if name != step:
            return
        if left[0]:
            left[0] -= 1
            return
        if where == "sealer":
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        elif where == "orphan":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(0.7)
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    return on_step


def write(root, step, where):
    from tailrace.store.writer import RecordWriter, WriterOptions
    from tests.store.samples import realistic

    def report(records):
        # One write a commit: a line is whole or absent, also when the next instruction is the last.
        os.write(1, ("".join(f"{record.request_id}\n" for record in records)).encode())

    options = WriterOptions(linger_s=0.002, seal_rows=300, seal_after_s=60.0)
    writer = RecordWriter(
        root,
        options,
        sealer_command=[sys.executable, "-m", "tests.store.processes", "seal", step, where],
        on_commit=report,
        on_step=killer(step, where, skip=1) if where == "writer" else lambda _step: None,
    )
    seed = os.getpid()
    for number in range(10_000):
        for record in realistic(1, seed=seed * 100_000 + number, kept=0.2, events=5):
            writer.put(record)
        time.sleep(0.0005)
    writer.close()


def amend(root, step, where):
    """One record, and amendments to it until killed; a number on a line: so many are acknowledged."""
    from tailrace.model.amendment import Amendment
    from tailrace.store.writer import RecordWriter, WriterOptions
    from tests.store.samples import T0, realistic

    writer = RecordWriter(
        root,
        WriterOptions(linger_s=0.002, seal_rows=300, seal_after_s=60.0),
        sealer_command=[sys.executable, "-m", "tests.store.processes", "seal", step, where],
        on_step=killer(step, where) if where == "writer" else lambda _step: None,
    )
    (record,) = realistic(1, failing=0)
    writer.put(record)
    for number in range(10_000):
        writer.amendments.put(
            Amendment(
                # The first to come counts.
                received_unix_ns=T0 + 1_000_000 - number,
                origin="span",
                request_id=record.request_id,
                parts_ns={"decode.step": number},
            )
        )
        os.write(1, b"%d\n" % writer.amendments.acknowledged)
        time.sleep(0.0005)
    writer.close()


def seal(step, where):
    import gc

    from tailrace.store.sealer import serve

    gc.disable()
    on_step = killer(step, where) if where in ("sealer", "orphan") else lambda _step: None
    serve(sys.stdin.buffer, sys.stdout.buffer, on_step)


if __name__ == "__main__":
    {"write": write, "amend": amend, "seal": seal}[sys.argv[1]](*sys.argv[2:])
