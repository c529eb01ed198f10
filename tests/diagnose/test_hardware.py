"""Readings of a machine as evidence: from files, laid beside requests."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.app.diagnose import diagnose_sources
from tailrace.diagnose.hardware import Hardware, Shares, shares_of_gpu
from tailrace.diagnose.readers.source import Kind, kind_of
from tailrace.diagnose.window import Window
from tailrace.model.errors import InputError
from tailrace.store.table import RecordTable
from tests.diagnose.machines import S, bad_seconds, delayed, gpu, host, span
from tests.diagnose.simulated import as_gateway, served
from tests.diagnose.test_readers import write_run


def calm():
    return as_gateway(served(rate=4.0, long_share=0.0))


def saved(hardware, path):
    body = {"tailrace_signals": 1, "now_ns": 5, "later_key": [1], "latest": {"host": None}, "host": hardware.host}
    path.write_bytes(msgspec.json.encode({**body, "gpus": hardware.gpus, "engine_pids": hardware.engine_pids}))
    return str(path)


def test_a_saved_answer_of_signals_beside_a_run(tmp_path):
    records = calm()
    bad = bad_seconds(records)
    run = write_run(tmp_path / "a.run", delayed(records, bad, 900))
    path = saved(host(records, bad, wait=0.8), tmp_path / "signals.json")
    assert kind_of(tmp_path / "signals.json") is Kind.SIGNALS
    first = diagnose_sources([run, path]).findings[0]
    assert (first.code, first.level) == ("FE_CPU_STARVED", "consistent")


def test_signals_that_are_none_are_an_error_of_the_input(tmp_path):
    path = tmp_path / "signals.json"
    path.write_text(json.dumps({"tailrace_signals": 1, "host": [{"at_ns": "x"}]}))
    with pytest.raises(InputError, match="no signals of a gateway"):
        diagnose_sources([str(path)])


def test_a_log_of_nvidia_smi_with_a_mark_at_its_beginning(tmp_path):
    path = tmp_path / "gpu.csv"
    path.write_text("\ufefftimestamp, index, power.draw [W], pstate\n2026/02/27 16:00:00.000, 0, 80.00 W, P0\n")
    assert kind_of(path) is Kind.NVIDIA_SMI
    result = diagnose_sources([str(path)])
    assert result.not_understood == [f"{path}: column 'pstate' is not read"]
    assert result.observations[0].text == "GPU 0: power 80 to 80 W (n = 1)"


def test_what_lies_outside_the_requests_time_is_left_out():
    records = calm()
    begin, _ = span(records)
    window = Window(RecordTable.from_records(records))
    hardware = host(records, []).joined(gpu(records, lambda _: False))
    before = msgspec.structs.replace(hardware.host[0], at_unix_ns=begin - 60 * S)
    early = msgspec.structs.replace(hardware.gpus[0], at_unix_ns=begin - 60 * S)
    nowhere = msgspec.structs.replace(hardware.gpus[0], at_unix_ns=None)
    found = hardware.joined(Hardware(host=[before], gpus=[early, nowhere])).within(window)
    assert before not in found.host
    assert early not in found.gpus
    assert nowhere in found.gpus
    assert len(found.host) >= len(hardware.host) - 1  # the last one may begin after the last token


def test_a_reading_speaks_for_half_a_minute_at_most():
    records = calm()
    window = Window(RecordTable.from_records(records))
    begin, _ = span(records)
    reading = gpu(records, lambda _: True).gpus[0]
    far = [msgspec.structs.replace(reading, at_unix_ns=begin + at * S) for at in (0, 100)]
    shares = shares_of_gpu(window, [(state, 1.0) for state in far])
    assert shares is not None
    assert (shares.end - shares.begin).max() == 30 * S
    assert shares_of_gpu(window, [(reading, 1.0)]) is None


SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50), st.floats(0, 1)), min_size=1, max_size=8)


@settings(max_examples=60)
@given(SPANS, st.integers(0, 400), st.integers(1, 400))
def test_what_lies_inside_is_the_sum_of_the_overlaps(spans, begin, length):
    edges, at = [], 0.0
    for gap, size, share in spans:
        edges.append((at + gap, at + gap + size, share))
        at += gap + size
    shares = Shares(*(np.array(column, dtype=np.float64) for column in zip(*edges, strict=True)))
    end = begin + length
    overlaps = [(max(0.0, min(b, end) - max(a, begin)), share) for a, b, share in edges]
    found = shares.inside_ms(np.array([float(begin)]), np.array([float(end)]))
    assert found[0] == pytest.approx(sum(size * share for size, share in overlaps) / 1e6, abs=1e-9)
    covered = shares.covered(np.array([float(begin)]), np.array([float(end)]))
    assert covered[0] == pytest.approx(sum(size for size, _ in overlaps) / length)
