import io
import os
import subprocess

import pytest

from tailrace.store.text_file import bounded_lines, read_text
from tests.children import child_env, tailrace_command


def test_a_text_is_read_whole_up_to_its_bound(tmp_path):
    file = tmp_path / "a"
    file.write_text("hällo")
    assert read_text(file) == "hällo"
    assert read_text(file, limit=6) == "hällo"
    with pytest.raises(OSError, match="goes on"):
        read_text(file, limit=5)
    with pytest.raises(OSError, match="goes on"):
        read_text("/dev/zero", limit=1 << 20)


def test_lines_are_given_as_they_are_up_to_their_bound():
    text = "a\nbb\n\nccc"
    assert list(bounded_lines(io.StringIO(text), limit=3)) == ["a\n", "bb\n", "\n", "ccc"]
    with pytest.raises(OSError, match="a line goes on"):
        list(bounded_lines(io.StringIO(text), limit=2))


@pytest.mark.parametrize("option", ["--trace", "--workload", "--template", "--conversations", "--tokenizer", "--rate"])
def test_what_never_ends_is_an_error_that_names_it(option):
    value = "@/dev/zero" if option == "--rate" else "/dev/zero"
    done = subprocess.run(
        tailrace_command("bench", "http://127.0.0.1:9", option, value),
        capture_output=True, text=True, env=child_env(), timeout=18, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert os.path.basename(value) in done.stderr  # noqa: PTH119  (a text, not a path of this machine)
    assert "Traceback" not in done.stderr
