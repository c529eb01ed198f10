import msgspec
import numpy as np
import pytest

from tailrace.app.diagnose import diagnose_sources, read_any
from tailrace.diagnose.readers.json_numbers import read_numbers
from tailrace.diagnose.readers.source import Kind, kind_of
from tailrace.diagnose.readers.triton_trace import read_triton_trace
from tailrace.export.jsonl import encode_lines
from tailrace.model.errors import InputError, RunFileError
from tailrace.model.measurement import ClientHealth
from tailrace.store.run_file import Arrival, RunHeader, RunTrailer, RunWriter
from tests.diagnose.simulated import UNCHUNKED, as_client, as_gateway, served

CODE = "SCHED_PREFILL_STEALS_DECODE"
SCRAPE = """# HELP vllm:num_preemptions_total Preemptions.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{{model_name="m"}} {0}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{model_name="m"}} {1}
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="m"}} 7.0
"""


def write_run(path, records, *, end=True, **trailer):
    header = RunHeader(
        kind="bench", target="http://x", arrival=Arrival(kind="poisson", rate=6.0, seed=1), mix="short:1"
    )
    with RunWriter(path, header) as writer:
        writer.write_all(records)
        if end:
            writer.close(RunTrailer(n=len(records), duration_s=100.0, **trailer))
    return str(path)


def test_a_run_file(tmp_path):
    path = write_run(tmp_path / "a.run", as_client(served(**UNCHUNKED)))
    first = diagnose_sources([path]).findings[0]
    assert first.code == CODE
    # The command repeats this very measurement.
    assert first.verify == (
        f"tailrace bench http://x --rate 6 --duration 98 --mix 'short:1' --seed 1 --out after.run "
        f"&& tailrace compare {path} after.run"
    )


def test_a_limited_client_is_read_from_the_trailer(tmp_path):
    path = write_run(tmp_path / "a.run", as_client(served()), client=ClientHealth(limited=True, why="slow loop"))
    assert diagnose_sources([path]).validity[0].code == "BENCH_CLIENT_QUEUE"


def test_a_cut_run_is_refused_with_the_remedy_and_read_when_asked(tmp_path):
    path = write_run(tmp_path / "a.run", as_client(served(**UNCHUNKED)), end=False)
    with pytest.raises(RunFileError, match="--partial"):
        diagnose_sources([path])
    result = diagnose_sources([path], allow_partial=True)
    assert result.findings[0].code == CODE
    assert "only what is whole was read" in result.not_understood[0]


def test_public_records_as_json_lines(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"".join(encode_lines(as_gateway(served(**UNCHUNKED)))))
    result = diagnose_sources([str(path)])
    assert (result.findings[0].code, result.findings[0].level) == (CODE, "consistent")


def test_the_records_own_form_as_json_lines(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(r) for r in as_gateway(served(**UNCHUNKED))) + b"\n\n")
    assert diagnose_sources([str(path)]).findings[0].code == CODE


def test_two_scrapes_beside_a_run_raise_what_is_known(tmp_path):
    run = write_run(tmp_path / "a.run", as_client(served(**UNCHUNKED)))
    scrapes = []
    for i, (count, usage) in enumerate([(10, 0.2), (10, 0.3)]):
        scrapes.append(tmp_path / f"{i}.prom")
        scrapes[-1].write_text(SCRAPE.format(count, usage))
    finding = diagnose_sources([run, *map(str, scrapes)]).findings[0]
    assert finding.code == CODE
    assert not any("preemption counter" in text for text in finding.missing)
    assert "0 preemptions" in finding.disproof_checked


def test_metrics_of_nobody_known_are_said_not_to_be_understood(tmp_path):
    run = write_run(tmp_path / "a.run", as_client(served(**UNCHUNKED)))
    other = tmp_path / "other.prom"
    other.write_text("# TYPE node_load1 gauge\nnode_load1 0.5\n")
    assert any("no signal" in note for note in diagnose_sources([run, str(other)]).not_understood)


def test_a_window_from_before(tmp_path):
    before = write_run(tmp_path / "a.run", as_client(served(1, rate=2.0, n=800, long_share=0.0)))
    after = write_run(tmp_path / "b.run", as_client(served(1, rate=2.0, n=800, long_share=0.0, speed=0.6)))
    result = diagnose_sources([after], before=before)
    assert result.findings[0].code == "DECODE_SLOWDOWN"


def test_a_data_directory(tmp_path):
    from tailrace.store.writer import RecordWriter

    records = as_gateway(served(**UNCHUNKED))
    with RecordWriter(tmp_path) as writer:
        assert all(writer.put(record) for record in records)
        assert writer.flush(10.0)
    (source,) = read_any(str(tmp_path))
    assert (source.kind, len(source.table), source.dropped) == (Kind.DIRECTORY, len(records), 0.0)
    assert diagnose_sources([str(tmp_path)]).findings[0].code == CODE


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "empty"),
        (b"hello\nworld\n", "no evidence that is known; it begins with 'hello'"),
        (b'{"request_id": "x"}\n', "not a record"),
    ],
)
def test_what_is_no_evidence_is_said(tmp_path, content, text):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(InputError, match=text):
        diagnose_sources([str(path)])


def test_missing_files_and_sources_without_records(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        diagnose_sources([str(tmp_path / "none")])
    with pytest.raises(InputError, match="data directory"):
        diagnose_sources([str(tmp_path)])


@pytest.mark.needs("shared")
def test_a_trace_file_of_triton_is_records(shared):
    path = shared / "data/engine_samples/triton/trace_infer.json"
    assert kind_of(path) is Kind.TRITON
    table = read_triton_trace(path)
    assert list(table.column("request_id")) == ["req-42"]
    stages = {name: float(table.ms(f"{name}_ns")[0]) for name in ("queue", "preprocess", "prefill", "postprocess")}
    assert stages["queue"] == pytest.approx(5.291, abs=0.001)
    assert stages["prefill"] == pytest.approx(288.185, abs=0.001)
    # Between its stamps there is no gap: nothing is left over.
    assert np.isnan(table.ms("unattributed_ns")[0])
    assert sum(stages.values()) == pytest.approx(float(table.ms("e2e_ns")[0]), abs=1e-6)


def test_a_trace_file_that_says_nothing_is_refused(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text('[{"id":1,"timestamps":[{"name":"HTTP_RECV_START","ns":5}]}]')
    with pytest.raises(InputError) as refused:
        read_triton_trace(path)
    assert "no whole request" in str(refused.value)


def test_a_file_that_begins_with_a_comment_need_not_be_a_scrape(tmp_path):
    route = tmp_path / "route.yaml"
    route.write_text("# an excerpt\nspec:\n  rules:\n  - timeouts:\n      request: 60s\n")
    run = write_run(tmp_path / "a.run", as_client(served(**UNCHUNKED)))
    found = diagnose_sources([run, str(route)])
    assert found.findings[0].code == CODE, "what is not known beside it takes nothing away"
    assert any("route.yaml" in text for text in found.not_understood)
    with pytest.raises(InputError, match="no evidence that is known"):
        diagnose_sources([str(route)])


def test_summaries_line_by_line_are_arms(tmp_path):
    lines = [
        msgspec.json.encode(
            {"request_rate": rate, "max_concurrency": None, "mean_ttft_ms": ttft, "p99_ttft_ms": 2 * ttft}
        )
        for rate, ttft in ((2, 96.1), (4, 121.7), (8, 4300.0))
    ]
    path = tmp_path / "sweep.jsonl"
    path.write_bytes(b"\n".join(lines))
    arms = read_numbers(path, "sweep.jsonl").arms
    assert [arm.values["ttft.mean"].value for arm in arms] == [96.1, 121.7, 4300.0]
    path.write_bytes(b"\n".join(lines) + b"\nbroken {")
    with pytest.raises(InputError, match="no JSON"):
        read_numbers(path, "sweep.jsonl")
