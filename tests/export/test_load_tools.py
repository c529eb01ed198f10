"""A run in another load generator's form, read back by our own reader: what the form can hold is the same again."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.analyze.bench_summary import summarise_run
from tailrace.cli.records_export import TOOL_FORMATS
from tailrace.diagnose.readers.foreign import Foreign
from tailrace.diagnose.readers.told_request import Told, record_of
from tailrace.export.load_tools import EXPORTERS
from tailrace.model.outcome import Reason
from tailrace.model.record import RequestRecord
from tailrace.model.timeline import EventKind
from tailrace.store.run_file import Arrival, Run, RunHeader, RunTrailer
from tests.conftest import shared_path
from tests.diagnose.foreign_results import read, run_of

FORM_OF = {
    "vllm": Foreign.VLLM,
    "sglang": Foreign.SGLANG,
    "guidellm": Foreign.GUIDELLM,
    "aiperf": Foreign.AIPERF,
    "genai-perf": Foreign.GENAI_PERF,
}
STARTED = 1_795_951_000_123_456_789
K = EventKind


@st.composite
def requests(draw: st.DrawFn, open_loop: bool) -> list[RequestRecord]:
    rows, offset = [], 0
    for number in range(draw(st.integers(1, 6))):
        offset += draw(st.integers(1, 10**9))
        gaps = draw(st.lists(st.integers(0, 3 * 10**9), max_size=6))
        first = draw(st.integers(1, 20 * 10**9))
        events = [first]
        for gap in gaps:
            events.append(events[-1] + gap)
        kinds = draw(
            st.lists(st.sampled_from([K.CONTENT, K.REASONING, K.TOOL]), min_size=len(events), max_size=len(events))
        )
        done = draw(st.integers(0, 10**9))
        failed = draw(st.integers(0, 4)) == 0
        tokens = draw(st.integers(len(events), 3 * len(events)))
        rows.append(
            record_of(
                Told(
                    request_id=f"id-{number}", tool="test", start_unix_ns=STARTED + offset, offset_ns=offset, model="m",
                    late_ns=draw(st.integers(0, 10**9)) if open_loop else None,
                    ttft_ns=first, events=events, kinds=[int(kind) for kind in kinds], tokens=[-1] * len(events),
                    content_ns=next((at for at, kind in zip(events, kinds, strict=True) if kind is K.CONTENT), None),
                    others=[(events[-1] + done, int(K.DONE))], end_ns=events[-1] + done,
                    prompt_tokens=draw(st.integers(1, 10**6)), prompt_source="usage",
                    output_tokens=tokens, output_source="usage",
                    reason=Reason.ENGINE_ERROR if failed else Reason.NONE, error="it broke" if failed else "",
                )
            )
        )  # fmt: skip
    return rows


@st.composite
def runs(draw: st.DrawFn) -> Run:
    open_loop = draw(st.booleans())
    records = draw(requests(open_loop))
    arrival = Arrival(kind="poisson", rate=5.0) if open_loop else Arrival(kind="closed", concurrency=4)
    return Run(
        path="x",
        header=RunHeader(model="m", target="http://h", started_unix_ns=STARTED, arrival=arrival),
        records=records,
        trailer=RunTrailer(n=len(records), duration_s=30.0),
    )


def exported(run: Run, form: str, folder: Path) -> Path:
    path = folder / "exported"
    path.write_bytes(b"".join(EXPORTERS[form](run).chunks))
    return path


def gaps(record: RequestRecord) -> list[int]:
    return [b - a for a, b in pairwise(record.timeline.token_stamps())] if record.timeline else []


def close(a: Any, b: Any, within: int) -> bool:
    return a is None and b is None if a is None or b is None else abs(a - b) <= within


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(run=runs())
@pytest.mark.parametrize("form", list(EXPORTERS))
def test_what_the_form_holds_comes_back(form: str, run: Run, tmp_path: Path) -> None:
    back = run_of(exported(run, form, tmp_path))
    # Stamps of GuideLLM are a float of the wall clock in seconds, in steps of 238 ns, and an offset is made of four;
    # all others keep their nanoseconds.
    wall = 4 * 238 if form == "guidellm" else 0
    assert len(back.records) == len(run.records)
    paired = back.records  # in the order of their intended sends
    if form in ("guidellm", "aiperf"):
        by_id = {record.request_id: record for record in back.records}
        paired = [by_id[record.request_id] for record in run.records]
    base = min((record.run_offset_ns or 0) for record in run.records)
    for ours, theirs in zip(run.records, paired, strict=True):
        assert theirs.ttft_ns == ours.ttft_ns
        assert close(theirs.e2e_last_token_ns, ours.e2e_last_token_ns, 1 + wall)
        assert close(theirs.tpot_ns, ours.tpot_ns, 1 + wall)
        assert (theirs.output_tokens, theirs.prompt_tokens) == (ours.output_tokens, ours.prompt_tokens)
        assert theirs.outcome == ours.outcome
        assert (theirs.error == "") == (ours.error == "")
        if form != "guidellm":
            assert gaps(theirs) == gaps(ours)
            assert theirs.chunk_gap_max_ns == ours.chunk_gap_max_ns
        if form in ("sglang", "guidellm", "genai-perf"):
            assert close(theirs.e2e_ns, ours.e2e_ns, wall)
        else:
            assert "e2e_ms" in back.header.absent
        if form in ("vllm", "guidellm", "aiperf"):
            assert close(theirs.intended_to_sent_ns, ours.intended_to_sent_ns, wall)
            assert close(theirs.run_offset_ns, (ours.run_offset_ns or 0) - base, 1 + wall)
        if form in ("guidellm", "aiperf", "genai-perf"):
            assert theirs.ttft_content_ns == ours.ttft_content_ns
        if form == "genai-perf":
            assert theirs.timeline is not None
            assert ours.timeline is not None
            assert [kind for kind in theirs.timeline.kind if kind <= K.REFUSAL] == [
                kind for kind in ours.timeline.kind if kind <= K.REFUSAL
            ]
    summaries = [summarise_run(one) for one in (run, back)]
    for name in ("ttft_ms", "tpot_ms", "e2e_last_token_ms"):
        one, two = (summary.metrics[name] for summary in summaries)
        assert one.n == two.n
        assert two.mean == pytest.approx(one.mean, abs=1e-3)
    assert sum(summaries[0].errors.values()) == sum(summaries[1].errors.values())


def whole() -> Run:
    """A run that has what no form can hold."""
    told = Told(
        request_id="r", tool="test", offset_ns=0, start_unix_ns=STARTED, late_ns=5_000_000, lane="chat",
        ttft_ns=10**8, events=[10**8, 2 * 10**8], kinds=[int(K.REASONING), int(K.CONTENT)], tokens=[1, 3],
        others=[(3 * 10**8, int(K.DONE))], end_ns=3 * 10**8, output_tokens=4, output_source="usage", cached_tokens=7,
    )  # fmt: skip
    warm = Told(request_id="w", tool="test", offset_ns=0, lane="warmup", ttft_ns=1, end_ns=2)
    records = [record_of(told), record_of(warm)]
    return Run(
        path="x",
        header=RunHeader(started_unix_ns=STARTED, arrival=Arrival(kind="poisson", rate=1.0)),
        records=records,
        trailer=RunTrailer(n=2, duration_s=1.0),
    )


@pytest.mark.parametrize(
    ("form", "lost", "kept"),
    [
        ("vllm", ("last bytes", "classes", "how many tokens each", "cached", "reasoning", "warm-up"), ("late sends",)),
        ("sglang", ("start times", "late sends", "warm-up", "how many tokens each"), ("last bytes",)),
        ("guidellm", ("timelines", "warm-up", "classes"), ("late sends", "last bytes", "cached")),
        ("aiperf", ("last bytes", "classes"), ("warm-up", "timelines", "late sends")),
        ("genai-perf", ("late sends", "how many tokens each", "placeholders"), ("last bytes", "reasoning")),
    ],
)
def test_what_is_lost_is_said(form: str, lost: tuple[str, ...], kept: tuple[str, ...], tmp_path: Path) -> None:
    said = " | ".join(EXPORTERS[form](whole()).lost)
    assert all(what in said for what in lost), said
    assert not any(what in said for what in kept), said
    assert len(run_of(exported(whole(), form, tmp_path)).records) == (2 if form == "aiperf" else 1)


@pytest.mark.parametrize("form", list(EXPORTERS))
def test_it_is_told_for_what_it_is(form: str, tmp_path: Path) -> None:
    source = read(exported(whole(), form, tmp_path))
    assert source.foreign is FORM_OF[form]


def test_an_empty_run_is_written_too(tmp_path: Path) -> None:
    empty = msgspec.structs.replace(whole(), records=[], trailer=RunTrailer(n=0))
    for form, export in EXPORTERS.items():
        assert isinstance(b"".join(export(empty).chunks), bytes), form


def test_the_command_s_formats_are_those_that_there_are() -> None:
    assert set(TOOL_FORMATS) == set(EXPORTERS)


@pytest.mark.needs("shared")
def test_a_written_vllm_result_has_the_keys_of_a_real_one(tmp_path: Path) -> None:
    real = json.loads((shared_path() / "data/bench_samples/vllm/bench_serve_real.json").read_text())
    made = json.loads(exported(whole(), "vllm", tmp_path).read_text())
    assert set(real) - set(made) <= {
        "build", "max_output_tokens_per_s", "max_concurrent_requests", "rtfx", "request_goodput",
    }  # fmt: skip
    for name, value in real.items():
        if name in made and made[name] is not None and value is not None and name != "burstiness":
            assert isinstance(made[name], int | float) == isinstance(value, int | float), name
            assert isinstance(made[name], list) == isinstance(value, list), name


@pytest.mark.needs("shared")
@pytest.mark.parametrize(
    ("name", "form", "other"),
    [
        ("vllm/bench_serve_real.json", "aiperf", "vllm"),
        ("aiperf/profile_export.jsonl", "vllm", "aiperf"),
        ("guidellm/benchmarks.json", "guidellm", "guidellm"),
    ],
)
def test_a_result_goes_from_tool_to_tool(name: str, form: str, other: str, tmp_path: Path) -> None:
    run = run_of(shared_path() / "data/bench_samples" / name)
    back = run_of(exported(run, form, tmp_path))
    for metric in ("ttft_ms", "tpot_ms", "e2e_last_token_ms"):
        one, two = (summarise_run(each).metrics[metric] for each in (run, back))
        assert (two.n, two.mean) == (one.n, pytest.approx(one.mean, abs=2e-3)), other
