"""The edges under atheris: `python harness.py client|engine|stream CORPUS… -max_total_time=200`.

Input: one byte says how long the plan is; plan; bytes for the edge.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["tailrace", "tests.wire.fuzz"]):
    from tests.wire.fuzz.client_edge import client_edge
    from tests.wire.fuzz.engine_edge import engine_edge
    from tests.wire.fuzz.stream_edge import stream_edge

EDGES = {"client": client_edge, "engine": engine_edge, "stream": stream_edge}


def main() -> None:
    edge = EDGES[sys.argv.pop(1)]

    def one(data: bytes) -> None:
        if data:
            size = data[0] & 31
            edge(data[1 + size :], data[1 : 1 + size])

    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
