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
from tailrace.diagnose.readers.paste import read_paste
from tailrace.model.errors import InputError
from tailrace.model.record import RequestRecord
from tests.diagnose.logs.lines import v1

TABLE = b"| version | TTFT p50 (ms) | TTFT p99 (ms) | n |\n|---|---|---|---|\n| before | 100 | 400 | 5000 |\n"
TABLE += b"| after | 101 | 1900 | 5000 |\n"
CSV = b"request_id,t_send_ms,t_first_ms,t_last_ms,output_tokens\n" + b"".join(
    b"r%d,%d,%d,%d,100\n" % (n, n * 50, n * 50 + 100, n * 50 + 900) for n in range(60)
)


def decode(line: bytes, place: str) -> RequestRecord:
    raise InputError("no record", place=place)


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


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_table_that_windows_wrote_is_read(tmp_path: Path, monkeypatch, encoding: str) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, text in (
        ("table.md", TABLE.decode()),
        # What a spreadsheet calls "Unicode text": tabs, and both marks at the end of a line.
        ("table.txt", TABLE.decode().replace("|---|---|---|---|\n", "").replace(" | ", "\t").replace("| ", "").replace(
            " |", "").replace("\n", "\r\n")),
        ("table.csv", "version,TTFT p50 (ms),TTFT p99 (ms),n\nbefore,100,400,5000\nafter,101,1900,5000\n"),
    ):  # fmt: skip
        path = tmp_path / name
        path.write_text(text, encoding="utf-8", newline="")
        plain = diagnose_sources([str(path)])
        assert plain.findings[0].code == "AB_TAIL_REGRESSED"
        marked = f"\ufeff{text}".encode(encoding)
        path.write_bytes(marked)
        assert diagnose_sources([str(path)]) == plain
        (read,) = read_paste(marked, name, decode)
        assert read.observed is not None
        assert [arm.role for arm in read.observed.arms] == ["before", "after"]
        packed = tmp_path / f"{name}.gz"
        packed.write_bytes(gzip.compress(marked))
        assert diagnose_sources([str(packed)]).findings == plain.findings
        path.unlink()
        packed.unlink()
        assert not list(tmp_path.iterdir())


def test_requests_that_windows_wrote_are_all_read_whatever_the_block_cuts(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    rows = "".join(f"a{n}µ,{n * 50},{n * 50 + 100},{n * 50 + 900},100\n" for n in range(30_000))
    path.write_text(f"request_id,t_send_ms,t_first_ms,t_last_ms,output_tokens\n{rows}", encoding="utf-16")
    assert path.stat().st_size > 1 << 20
    (read,) = read_any(str(path))
    assert read.table is not None
    assert len(read.table) == 30_000
    assert set(read.table.column("request_id")) == {f"a{n}µ" for n in range(30_000)}


def test_an_issue_in_utf16_is_cut_into_its_parts(tmp_path: Path) -> None:
    log = "\n".join(v1(10.0 * n) for n in range(20))
    text = f"It is slow since the update, as we have seen.\n\n{TABLE.decode()}\n```\n{log}\n```\n"
    path = tmp_path / "issue.md"
    path.write_text(text, encoding="utf-8")
    plain = diagnose_sources([str(path)])
    path.write_text(text, encoding="utf-16")
    assert diagnose_sources([str(path)]) == plain


def test_what_windows_wrote_is_named_by_its_own_name_where_it_is_no_evidence(tmp_path: Path) -> None:
    path = tmp_path / "nothing.csv"
    path.write_text("nothing at all\n", encoding="utf-16")
    with pytest.raises(InputError) as raised:
        diagnose_sources([str(path)])
    assert raised.value.place == str(path)
    assert "'nothing at all'" in str(raised.value)
