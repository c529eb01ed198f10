"""Any file of another load generator: told by its content, read in bounded memory, refused with place and remedy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.diagnose.readers import foreign_json
from tailrace.diagnose.readers.foreign import HEAD_BYTES, READERS, Foreign, foreign_of, read_foreign
from tailrace.diagnose.readers.imported import Imported
from tailrace.diagnose.readers.source import Kind, kind_of
from tailrace.model.errors import InputError
from tailrace.model.record import broken_invariants
from tailrace.store.run_file import Run
from tests.children import child_env
from tests.diagnose.foreign_results import (
    INFERENCE_PERF_SUMMARY,
    LLMPERF_SUMMARY,
    aiperf_line,
    genai_bench,
    guidellm,
    llmperf,
    read,
    sglang,
    vllm,
    without_requests,
    write,
)

AIPERF_SUMMARY = {
    "schema_version": "1.4",
    "aiperf_version": "0.13.0",
    "time_to_first_token": {"unit": "ms", "avg": 1.5},
}
GENAI_PERF_SUMMARY = {
    "request_throughput": {"unit": "requests/sec", "avg": 1.0},
    "request_latency": {"unit": "ms", "avg": 5.0},
    "time_to_first_token": {"unit": "ms", "avg": 1.0},
}
GENAI_PERF = {
    "service_kind": "openai",
    "endpoint": "v1/chat/completions",
    "experiments": [
        {
            "experiment": {"mode": "concurrency", "value": 1},
            "requests": [
                {
                    "timestamp": 1_700_000_000_000_000_000,
                    "request_inputs": {"payload": '{"model":"m","max_tokens":4}'},
                    "response_timestamps": [1_700_000_000_100_000_000, 1_700_000_000_200_000_000],
                    "response_outputs": [{"response": 'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'}] * 2,
                }
            ],
        }
    ],
}
INFERENCE_PERF = [
    {"start_time": 1.0, "end_time": 2.0, "request": "", "response": "", "error": None,
     "info": {"input_tokens": 3, "output_tokens": 2, "output_token_times": [1.2, 1.4]}},
]  # fmt: skip
CONSOLE = "==== Serving Benchmark Result ====\nSuccessful requests:   7\nMean TTFT (ms):   1.5\n"
FORMS: dict[Foreign, Any] = {
    Foreign.VLLM: vllm(),
    Foreign.SGLANG: sglang(),
    Foreign.CONSOLE: CONSOLE,
    Foreign.GUIDELLM: guidellm(),
    Foreign.AIPERF: json.dumps(aiperf_line()) + "\n",
    Foreign.AIPERF_SUMMARY: AIPERF_SUMMARY,
    Foreign.GENAI_PERF: GENAI_PERF,
    Foreign.GENAI_PERF_SUMMARY: GENAI_PERF_SUMMARY,
    Foreign.INFERENCE_PERF: INFERENCE_PERF,
    Foreign.INFERENCE_PERF_SUMMARY: INFERENCE_PERF_SUMMARY,
    Foreign.LLMPERF: llmperf(),
    Foreign.LLMPERF_SUMMARY: LLMPERF_SUMMARY,
    Foreign.GENAI_BENCH: genai_bench(),
}


def text_of(form: Foreign) -> str:
    value = FORMS[form]
    return value if isinstance(value, str) else json.dumps(value)


def test_every_form_has_a_reader_and_a_sample() -> None:
    assert set(READERS) == set(Foreign) == set(FORMS)


@pytest.mark.parametrize("form", list(Foreign))
def test_a_form_is_told_by_its_content(form: Foreign, tmp_path: Path) -> None:
    for name in ("results.json", "metrics.prom", "noname"):
        path = write(tmp_path, text_of(form), name)
        assert kind_of(path) is Kind.LOAD_TOOL
        source = read(path)
        assert source.foreign is form
        assert (source.run is None) != (source.aggregate is None)


@pytest.mark.parametrize("form", [form for form in Foreign if form not in (Foreign.CONSOLE, Foreign.AIPERF)])
def test_neither_layout_nor_a_byte_order_mark_matters(form: Foreign, tmp_path: Path) -> None:
    pretty = json.dumps(FORMS[form], indent=4, sort_keys=True)
    for text in (pretty, "\ufeff" + text_of(form), pretty.replace("\n", "\r\n")):
        assert read(write(tmp_path, text)).foreign is form


def test_our_own_lines_are_not_taken_for_another_tool_s(tmp_path: Path) -> None:
    line = {"request_id": "r1", "start_unix_ns": 5, "e2e_ms": 1.0, "outcome": "completed", "vantage": "client"}
    line |= {"error": 'said {"ttfts": [1], "itls": []}'}
    assert kind_of(write(tmp_path, json.dumps(line) + "\n")) is Kind.LINES


@pytest.mark.parametrize("form", list(Foreign))
def test_a_cut_file_says_where_and_what_to_do(form: Foreign, tmp_path: Path) -> None:
    text = text_of(form)
    if form is Foreign.CONSOLE:
        text = text[:35]
    path = write(tmp_path, text[: len(text) * 3 // 4] if form is not Foreign.CONSOLE else text)
    with pytest.raises(InputError) as caught:
        read_foreign(path, form)
    assert caught.value.place.startswith(str(path))
    assert caught.value.remedy


def test_two_tools_in_one_file_are_told_apart(tmp_path: Path) -> None:
    mixed = json.dumps(vllm()) + "\n" + json.dumps([1, 2]) + "\n"
    with pytest.raises(InputError, match="is no result of vllm bench"):
        read(write(tmp_path, mixed))
    with pytest.raises(InputError, match=r":2: is no result of vllm bench.*\$.ttfts"):
        read(write(tmp_path, json.dumps(vllm()) + "\n" + json.dumps({"ttfts": {}})))


def test_what_is_no_number_in_json_is_absent(tmp_path: Path) -> None:
    """Python writes NaN and Infinity where it has no number; JSON has neither."""
    saved = without_requests(vllm(completed=0, failed=0, mean_ttft_ms=float("nan"), p99_ttft_ms=float("inf")))
    saved |= {"completed": 5, "mean_e2el_ms": 7.5, "std_e2el_ms": float("-inf")}
    source = read(write(tmp_path, saved))
    assert source.aggregate is not None
    metrics = source.aggregate.summary.metrics
    assert (metrics["ttft_ms"].n, metrics["e2e_last_token_ms"].mean) == (0, 7.5)


def test_a_number_of_a_run_belongs_to_other_tools_only(tmp_path: Path) -> None:
    path = write(tmp_path, "# HELP a\na 1\n")
    with pytest.raises(InputError, match="names one of several runs; this is a scrape"):
        read(f"{path}#1")
    named = write(tmp_path, json.dumps(vllm()), "run#7")
    assert read(named).foreign is Foreign.VLLM


def test_too_large_a_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, vllm())
    monkeypatch.setattr(foreign_json, "MOST_BYTES", 100)
    with pytest.raises(InputError, match="GiB") as caught:
        read(path)
    assert caught.value.remedy


# -- nonsense

_numbers = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(allow_nan=True), st.sampled_from([0, -1, 1e308, -1e308, 2**63, 1.7e18])
)
_leaves = st.one_of(st.none(), st.booleans(), _numbers, st.text(max_size=8))
_json = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def _paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    out = [at]
    if isinstance(value, dict):
        out += [path for key, inner in value.items() for path in _paths(inner, (*at, key))]
    elif isinstance(value, list):
        out += [path for key, inner in enumerate(value) for path in _paths(inner, (*at, key))]
    return out


def _changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _changed(copy[path[0]], path[1:], new)
    return copy


def check_read(path: Path, form: Foreign) -> None:
    """Read, or refused with a place; what was read is sound. Any other exception fails the test by itself."""
    place = ""
    try:
        imported = read_foreign(path, form, allow_partial=True)
    except InputError as error:
        place = error.place
        imported = Imported(items=[])
    assert imported.items or place.startswith(str(path))
    for item in imported.items:
        if isinstance(item, Run):
            assert all(broken_invariants(record) == [] for record in item.records)
            assert all(0 <= (record.ttft_ns or 0) <= record.e2e_ns for record in item.records)
            item.table()
        else:
            for metric in item.summary.metrics.values():
                assert (metric.mean or 0) >= 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=25)
@given(data=st.data())
@pytest.mark.parametrize("form", [form for form in Foreign if form is not Foreign.CONSOLE])
def test_any_value_anywhere_is_read_or_refused(form: Foreign, tmp_path: Path, data: st.DataObject) -> None:
    value = json.loads(FORMS[form]) if isinstance(FORMS[form], str) else FORMS[form]
    path = data.draw(st.sampled_from(_paths(value)))
    made = _changed(value, path, data.draw(_json))
    check_read(write(tmp_path, json.dumps(made)), form)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=20)
@given(data=st.data())
@pytest.mark.parametrize("form", list(Foreign))
def test_any_damage_is_read_or_refused(form: Foreign, tmp_path: Path, data: st.DataObject) -> None:
    raw = text_of(form).encode()
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, min(len(raw), start + 200)))
    damaged = raw[:start] + data.draw(st.binary(max_size=12)) + raw[end:]
    path = tmp_path / "damaged"
    path.write_bytes(damaged)
    check_read(path, form)


@given(head=st.binary(max_size=200))
def test_telling_forms_apart_never_fails(head: bytes) -> None:
    assert foreign_of(head) is None or isinstance(foreign_of(head), Foreign)


@pytest.mark.parametrize("form", list(Foreign))
def test_brackets_a_thousand_deep_are_refused(form: Foreign, tmp_path: Path) -> None:
    opening = "[" if text_of(form).startswith("[") else '{"metadata":'
    with pytest.raises(InputError):
        read_foreign(write(tmp_path, opening + "[" * 100_000), form)


# -- size

_MEASURE = """
import sys
from pathlib import Path
from tailrace.diagnose.readers.source import read_source

def peak():
    # Of this program alone: getrusage's peak is inherited from whoever started it.
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024

before = peak()
source = read_source(sys.argv[1], None)
assert source.run is not None and len(source.run.records) == int(sys.argv[2])
print(peak() - before)
"""


_MODULES = 40e6
"""Bytes of the modules that reading loads, whatever is read."""


def grown(path: Path, n: int) -> int:
    """By how many bytes the process grows that reads the file, the file's own pages among them."""
    command = [sys.executable, "-c", _MEASURE, str(path), str(n)]
    done = subprocess.run(command, env=child_env(), capture_output=True, text=True, timeout=28, check=True)
    return int(done.stdout)


@pytest.mark.tier("ci")
@pytest.mark.long("two processes read files of 12 and 80 MB", timeout=60)
def test_reading_takes_a_few_times_the_file_and_texts_take_nothing(tmp_path: Path) -> None:
    """The stated limit is four times the file, its own pages among them; texts of answers are skipped in place."""
    n, gaps = 2_000, 300
    gap = [0.020123456789 + i * 1e-9 for i in range(gaps)]
    dense = vllm(
        input_lens=[9] * n, output_lens=[gaps + 1] * n, ttfts=[0.1] * n, itls=[gap] * n, latencies=[9.0] * n,
        start_times=[i / 10 for i in range(n)], queue_times=[0.0] * n, errors=[""] * n,
    )  # fmt: skip
    path = write(tmp_path, dense, "dense")
    assert path.stat().st_size > 10e6
    assert grown(path, n) < 4.5 * path.stat().st_size + _MODULES
    wordy = vllm(
        input_lens=[9] * n, output_lens=[3] * n, ttfts=[0.1] * n, itls=[[0.02, 0.02]] * n, latencies=[0.14] * n,
        start_times=[i / 10 for i in range(n)], queue_times=[0.0] * n, errors=[""] * n,
        generated_texts=["word " * 8_000] * n,
    )  # fmt: skip
    path = write(tmp_path, wordy, "wordy")
    assert grown(path, n) < 1.3 * path.stat().st_size + _MODULES


def test_requests_line_by_line_need_no_copy_of_the_file(tmp_path: Path) -> None:
    n = 2_000
    line = aiperf_line()
    line["texts"] = "word " * 8_000  # what a raw export holds beside the numbers
    path = write(tmp_path, (json.dumps(line) + "\n") * n, "lines")
    assert path.stat().st_size > 2 * _MODULES - 2e6
    assert grown(path, n) < 1.5 * _MODULES


def test_the_head_is_long_enough_for_settings_before_the_telling_keys(tmp_path: Path) -> None:
    late = {"config": {"prompt": "x" * (HEAD_BYTES // 2)}, **guidellm()}
    assert read(write(tmp_path, late)).foreign is Foreign.GUIDELLM
