"""Ten minutes of coverage-guided fuzzing: the client's edge, the engine's, and the stream's."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.children import child_env
from tests.conftest import FUZZ_VENV, ROOT
from tests.wire.fuzz.corpus import SEEDS, write_corpus

SECONDS = int(os.environ.get("TAILRACE_FUZZ_SECONDS", "300"))
"""For each edge; two run at a time."""


async def _fuzz(edge: str, folder: Path) -> tuple[str, int, str]:
    corpus = write_corpus(edge, folder / "corpus")
    environment = child_env()
    environment["PYTHONPATH"] += f"{os.pathsep}{ROOT}"
    child = await asyncio.create_subprocess_exec(
        str(FUZZ_VENV / "bin" / "python"),
        str(Path(__file__).with_name("harness.py")),
        edge,
        str(corpus),
        f"-max_total_time={SECONDS}",
        "-max_len=3000",
        "-timeout=10",
        "-rss_limit_mb=1024",
        f"-artifact_prefix={folder}/{edge}-",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
    )
    try:
        said, _ = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return edge, child.returncode or 0, said.decode("utf-8", "replace")


@pytest.mark.tier("all")
@pytest.mark.needs("atheris")
@pytest.mark.long("fuzzing finds with time", timeout=3 * SECONDS + 60)
def test_ten_minutes_find_no_crash_hang_leak_or_interleaving(tmp_path: Path) -> None:
    async def both() -> list[tuple[str, int, str]]:
        turns = asyncio.Semaphore(2)

        async def one(edge: str) -> tuple[str, int, str]:
            async with turns:
                return await _fuzz(edge, tmp_path)

        return await asyncio.gather(*map(one, SEEDS))

    for edge, code, said in asyncio.run(both()):
        assert code == 0, f"{edge}:\n{said[-6000:]}"
        assert "Done " in said
