"""What was packed is read as what it holds, whoever packed it."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tempfile
import zipfile
from pathlib import Path

import pytest

from tailrace.app.diagnose import diagnose_sources, read_any
from tailrace.model.errors import InputError
from tests.diagnose.logs.lines import v1

TABLE = b"| version | TTFT p50 (ms) | TTFT p99 (ms) | n |\n|---|---|---|---|\n| before | 100 | 400 | 5000 |\n"
TABLE += b"| after | 101 | 1900 | 5000 |\n"
CSV = b"request_id,t_send_ms,t_first_ms,t_last_ms,output_tokens\n" + b"".join(
    b"r%d,%d,%d,%d,100\n" % (n, n * 50, n * 50 + 100, n * 50 + 900) for n in range(60)
)


def zipped(data: bytes, *more: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("it.md", *more):
            archive.writestr(name, data)
    return out.getvalue()


@pytest.mark.parametrize(
    ("ending", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zip", zipped)]
)
def test_a_packed_file_is_what_it_holds(tmp_path: Path, ending: str, pack) -> None:
    table = tmp_path / f"table.md{ending}"
    table.write_bytes(pack(TABLE))
    found = diagnose_sources([str(table)])
    assert found.findings[0].code == "AB_TAIL_REGRESSED"
    assert found.findings[0].evidence[0].source.startswith("table.md:")
    requests = tmp_path / f"requests.csv{ending}"
    requests.write_bytes(pack(CSV))
    (read,) = read_any(str(requests))
    assert read.name == str(requests)
    assert read.table is not None
    assert len(read.table) == 60


def test_what_cannot_be_unpacked_is_named_and_leaves_nothing_behind(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, data, words in (
        ("cut.csv.bz2", bz2.compress(CSV)[:-20], "unpacked to its end"),
        ("cut.csv.xz", lzma.compress(CSV)[:-20], "unpacked to its end"),
        ("several.zip", zipped(TABLE, "other.md"), "zip archive"),
        ("nothing.csv.gz", gzip.compress(b""), "empty"),
        ("picture.gz", gzip.compress(b"\x89PNG" + bytes(range(256)) * 20), "picture"),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(InputError) as raised:
            read_any(str(path))
        assert words in str(raised.value)
        assert raised.value.place == str(path)
        assert [one.name for one in tmp_path.iterdir()] == [name]
        path.unlink()


def test_a_packed_log_is_streamed_and_no_copy_of_it_is_made(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "vllm.log.gz"
    path.write_bytes(gzip.compress("\n".join(v1(10.0 * n) for n in range(3)).encode()))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    (read,) = read_any(str(path))
    assert read.observed is not None
    assert read.observed.series
