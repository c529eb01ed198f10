"""Seeds for the fuzzer: the transcripts of the wire's tests, one file each."""

from __future__ import annotations

from pathlib import Path

from tests.wire.fuzz.engine_edge import PART
from tests.wire.fuzz.test_edges import EVENTS, REQUESTS
from tests.wire.test_engine_framing import DOUBTFUL, SOUND

SEEDS = {
    "client": [*REQUESTS, b"".join(REQUESTS[-5:])],
    "engine": [*SOUND.values(), *DOUBTFUL.values(), PART.join(SOUND.values())],
    "stream": [*EVENTS, b"".join(EVENTS)],
}
PLAN = bytes([3, 65, 7, 129, 64, 20, 195])


def write_corpus(edge: str, folder: Path) -> Path:
    """Files as `harness.py` reads them: the length of a plan, the plan, the bytes."""
    out = folder / edge
    out.mkdir(parents=True)
    for number, seed in enumerate(SEEDS[edge]):
        (out / f"{number}").write_bytes(bytes([len(PLAN)]) + PLAN + seed)
        (out / f"{number}-whole").write_bytes(b"\0" + seed)
    return out
