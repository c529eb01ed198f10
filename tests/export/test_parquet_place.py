"""Where a Parquet file is put, and what is never put aside for it."""

import os
import stat

import pytest

from tailrace.export.parquet import write_parquet
from tailrace.model.errors import InputError
from tests.analyze.tables import request, table


def test_a_pipe_or_a_device_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="no ordinary file"):
        write_parquet(table([request(1)]), pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]
