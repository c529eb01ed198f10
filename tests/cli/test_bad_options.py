"""Options of `tailrace bench` that mean nothing: one sentence, exit code 2, before anything is sent."""

import contextlib
import io

import pytest

from tailrace.cli import main
from tailrace.cli.printable import printable
from tailrace.cli.workload_file import read_workload
from tailrace.model.errors import InputError


def ended(*args: str) -> tuple[object, str]:
    err = io.StringIO()
    with contextlib.redirect_stderr(err), pytest.raises(SystemExit) as end:
        main(["bench", "http://127.0.0.1:9", *args])
    return end.value.code, err.getvalue()


@pytest.mark.parametrize(
    ("args", "place"),
    [
        (("--seed", "99999999999999999999999999"), "--seed"),
        (("--rate", "1e-300"), "--rate"),
        (("--duration", "99999999999999999999d"), "--duration"),
        (("--timeout", "99999999999999999999d"), "--timeout"),
        (("--rate", "5", "--burstiness", "0"), "--burstiness"),
        (("--rate", "5", "--burstiness", "1e-300"), "--burstiness"),
        (("--rate", "5", "--arrival", "gamma 1e-300"), "--burstiness"),
        (("--mix", "a=1/1:1e308,b=1/1:1e308"), "--mix"),
        (("--shared-prefix", "-1"), "--shared-prefix"),
        *((("--chars-per-token", value), "--chars-per-token") for value in ("0", "-3", "nan", "inf", "1e300")),
        (("--sweep", "rate=1e-300,1"), "--sweep"),
        (("--sweep", "rate=1,2", "--repeat"), "--sweep"),
        (("--find-rate", "--repeat"), "--sweep"),
        (("--find-rate", "--as", "vllm"), "--sweep"),
        (("--repeat", "--trim", "1s"), "--repeat"),
        (("--find-rate", "--search-from", "1e308"), "--search-from"),
        (("--find-rate", "--search-most", "nan"), "--search-most"),
        (("--find-rate", "--search-from", "10", "--search-most", "5"), "--search-from"),
        (("--find-concurrency", "--search-from", "0.1"), "--search-from"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else "",
)
def test_what_means_nothing_is_refused(args: tuple[str, ...], place: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said = ended(*args)
    assert code == 2
    assert place in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["&a [*a]", "[" * 100_000, "classes: &a {b: *a}"], ids=["itself", "deep", "inside"])
def test_a_workload_without_an_end_is_refused(text: str, tmp_path):
    file = tmp_path / "w.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_workload(str(file))
    assert str(file) in caught.value.place


def test_an_empty_workload_is_named_by_its_file_alone(tmp_path):
    file = tmp_path / "w.yaml"
    file.write_text("")
    with pytest.raises(InputError) as caught:
        read_workload(str(file))
    assert caught.value.place == str(file)


def test_what_an_error_quotes_reaches_no_terminal():
    assert printable("\x1b[31mred\x07 ü\ttab\nline \x9b2J \u202e \ud800") == (
        "\\x1b[31mred\\x07 ü\ttab\nline \\x9b2J \\u202e \\ud800"
    )
    code, said = ended("--rate", "\x1b[31m")
    assert code == 2
    assert "\x1b" not in said
