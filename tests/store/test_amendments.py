"""What became known later, at rest: kept like records, joined to them by whoever reads."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tailrace.measure.amend import AMENDABLE, amend
from tailrace.model.amendment import Amendment
from tailrace.model.record import broken_invariants
from tailrace.store.amendment_file import (
    AMENDMENT_TYPES,
    decode_amendments,
    encode_amendments,
    fetch_amendments,
    register_amendments,
)
from tailrace.store.layout import DataDirectory
from tailrace.store.query import RecordStore
from tailrace.store.segment import list_segments
from tailrace.store.series import AMENDMENTS
from tailrace.store.table import FIELDS
from tailrace.store.upkeep import compact, prune
from tailrace.store.writer import RecordWriter, WriterOptions
from tests.store.processes import child_environment
from tests.store.samples import DAY, T0, realistic

QUICK = WriterOptions(linger_s=0.002, sealing=False)
S = 1_000_000_000


def unsplit(n, **more):
    """Records of whose wait nobody said anything, each with a trace of its own."""
    out = []
    for place, one in enumerate(realistic(n, **more)):
        sources = dict.fromkeys(("ingress", "queue", "queue.gateway", "decode", "postprocess", "response"), "measured")
        out.append(
            msgspec.structs.replace(
                one,
                trace_id=f"{place + 1:032x}",
                span_id=f"{place + 1:016x}",
                prefill_ns=None,
                unattributed_ns=one.unattributed_ns + one.prefill_ns,
                stage_sources={**sources, "unattributed": "inferred(remainder)"},
                ttft_upstream_ns=1,
            )
        )
    return out


def span_of(record, prefill_ns=1000, **more):
    """A span below the record's, come two seconds after its start."""
    fields = {
        "trace_id": record.trace_id,
        "parent_span_id": record.span_id,
        "span_id": f"e{record.span_id[1:]}",
        **more,
    }
    came = record.start_unix_ns + 2 * S
    return Amendment(received_unix_ns=came, origin="vllm span llm_request", prefill_ns=prefill_ns, **fields)


RECORDS = unsplit(3000, kept=0.02, failing=0.05, step_ns=2 * S)
LATE = [
    *(span_of(record, place * 1000 + 1) for place, record in enumerate(RECORDS) if place % 10 == 0),
    *(
        Amendment(
            received_unix_ns=record.start_unix_ns + S,
            origin="gateway",
            request_id=record.request_id,
            cancel_slot_ns=5,
            finish_reason="abort",
        )
        for record in RECORDS[5::500]
    ),
    # A chain over a span that reports nothing else, and one whose hop between is missing.
    span_of(RECORDS[1], None, span_id="hop", parts_ns={"preprocess.retrieval": 7}),
    span_of(RECORDS[1], 9, parent_span_id="hop"),
    span_of(RECORDS[2], 9, parent_span_id="nobody told"),
]
BY_RECORD = {
    record.request_id: [one for one in LATE if record.request_id == one.request_id or record.trace_id == one.trace_id]
    for record in RECORDS
}
AMENDED = [amend(record, BY_RECORD[record.request_id]) for record in RECORDS]
"""What every reader must find. The one that has its trace alone says so besides."""
AMENDED[2] = msgspec.structs.replace(
    AMENDED[2],
    stage_sources={**AMENDED[2].stage_sources, "prefill": "reported(vllm span llm_request; by its trace alone)"},
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Records sealed and hot, amendments sealed, merged and hot, by three writers, amendments before and after."""
    where = tmp_path_factory.mktemp("data")
    third = len(LATE) // 3
    with RecordWriter(where, WriterOptions(linger_s=0.002)) as writer:
        for record in RECORDS[:2000]:
            writer.put(record)
        for at in (0, third // 2):
            for one in LATE[at : at + third // 2]:
                assert writer.amendments.put(one)
            assert writer.seal_now()
        compact(DataDirectory(where), merge_files=2)
        for one in LATE[third // 2 * 2 : 2 * third]:
            writer.amendments.put(one)
        assert writer.seal_now()
        counters = writer.counters()
        assert counters["amendments.sealed"] == counters["amendments.acknowledged"] == 2 * third
    with RecordWriter(where, QUICK) as writer:  # a supervisor has amendments only
        for one in LATE[2 * third :]:
            writer.amendments.put(one)
    with RecordWriter(where, QUICK) as writer:
        for record in RECORDS[2000:]:
            writer.put(record)
    listing = list_segments(DataDirectory(where).amendments)
    assert len(listing.names) >= 2
    assert listing.replaced
    return where


@pytest.fixture(scope="module")
def store(root):
    return RecordStore(root)


def test_every_way_to_read_records_shows_them_amended(store):
    assert not any(broken_invariants(record) for record in AMENDED if record.stage_sources)
    assert sum(now != before for now, before in zip(AMENDED, RECORDS, strict=True)) > 300
    assert store.records() == AMENDED
    assert store.records(limit=7) == AMENDED[-7:]
    since, until = RECORDS[990].start_unix_ns, RECORDS[1011].start_unix_ns
    assert store.records(since, until_unix_ns=until) == AMENDED[990:1011]
    for place in (0, 1, 2, 5, 10, 2990, 2999):
        assert store.get(RECORDS[place].request_id) == AMENDED[place]
    assert store.records(until_unix_ns=RECORDS[3].start_unix_ns) == AMENDED[:3]
    assert store.size()["amendments"] == len(LATE)


def test_records_as_they_were_written_are_there_too(store):
    assert list(store.table(with_timelines=True, amended=False).records()) == RECORDS
    assert store.get(RECORDS[0].request_id, amended=False) == RECORDS[0]
    assert store.ask("quantiles", metric="prefill", amended=False).dicts()[0]["n"] == 0


def test_an_order_and_a_filter_go_by_what_is_known_now(store):
    slowest = sorted((one for one in AMENDED if one.prefill_ns is not None), key=lambda one: -one.prefill_ns)
    found = store.table(limit=5, slowest_by="prefill_ns", with_timelines=True)
    assert list(found.records()) == slowest[:5]
    aborted = [one for one in AMENDED if one.finish_reason == "abort"]
    assert len(aborted) == 6
    assert list(store.table(equal={"finish_reason": "abort"}, with_timelines=True).records()) == aborted
    assert list(store.table(equal={"finish_reason": "abort", "lane": "none"}).records()) == []


@pytest.mark.parametrize("window", [(None, None), (RECORDS[500].start_unix_ns, RECORDS[2500].start_unix_ns)])
def test_the_named_queries_see_the_amended_stages(store, window):
    since, until = window
    mine = [one for one in AMENDED if (since or 0) <= one.start_unix_ns < (until or 2**63)]
    for stage in ("prefill", "unattributed", "queue"):
        values = [value for one in mine if (value := one.stage_ns(stage)) is not None]
        (row,) = store.ask("quantiles", metric=stage, since_unix_ns=since, until_unix_ns=until).dicts()
        assert (row["requests"], row["n"]) == (len(mine), len(values))
        assert row["max_ms"] == max(values) / 1e6
        assert row["mean_ms"] == pytest.approx(sum(values) / len(values) / 1e6)
    rows = store.ask("stage_p99_by_lane", since_unix_ns=since, until_unix_ns=until).dicts()
    assert sum(row["prefill_n"] for row in rows) == sum(one.prefill_ns is not None for one in mine)
    tail = store.ask("stages_of_tail", metric="prefill", since_unix_ns=since, until_unix_ns=until).dicts()
    assert tail[0]["n"] == sum(one.prefill_ns is not None for one in mine)
    (seen,) = store.ask("quantiles", metric="ttft", since_unix_ns=since, until_unix_ns=until).dicts()
    assert seen["requests"] == len(mine)


def test_a_trace_that_holds_another_request_elsewhere_gives_its_orphans_to_nobody(tmp_path):
    first, second, third = unsplit(3, step_ns=600 * S)
    second, third = (msgspec.structs.replace(one, trace_id=first.trace_id) for one in (second, third))
    third = msgspec.structs.replace(third, vantage="application")
    orphan = span_of(first, 9, parent_span_id="nobody told")
    with RecordWriter(tmp_path, WriterOptions(linger_s=0.002)) as writer:
        writer.put(first)
        writer.put(third)
        writer.amendments.put(orphan)
        assert writer.flush()
        # The application's own record is no second request.
        found = RecordStore(tmp_path).get(first.request_id)
        assert found.prefill_ns == 9
        assert found.stage_sources["prefill"].endswith("; by its trace alone)")
        for seal in (False, True):
            if not seal:
                writer.put(second)
                assert writer.flush()
            else:
                assert writer.seal_now()
            store = RecordStore(tmp_path)
            assert [one.prefill_ns for one in store.records()] == [None, None]
            assert [one.prefill_ns for one in store.records(vantage=None)] == [None, None, None]
            # Also where a window, a limit or an id leaves only one of the two.
            assert store.get(first.request_id) == first
            assert store.records(until_unix_ns=second.start_unix_ns) == [first]
            (row,) = store.ask("quantiles", metric="prefill", until_unix_ns=second.start_unix_ns).dicts()
            assert (row["requests"], row["n"]) == (1, 0)


SPOKEN = st.none() | st.integers(-(2**62), 2**62)
NUMBERS = {name for name, kind in AMENDMENT_TYPES.items() if kind == "BIGINT"} - {"schema", "received_unix_ns"}
ANY = st.builds(
    Amendment,
    received_unix_ns=st.integers(0, 2**62),
    **{name: st.text(max_size=5) for name in ("origin", "request_id", "trace_id", "finish_reason", "span_id")},
    **{
        name: SPOKEN
        for name, kind in AMENDMENT_TYPES.items()
        if kind == "BIGINT" and name not in ("schema", "received_unix_ns")
    },
    parts_ns=st.dictionaries(st.text(max_size=5), st.integers(0, 2**62), max_size=2),
    sources=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
)


@given(data=st.data())
@settings(max_examples=20)
def test_amendments_come_back_exactly_from_both_tiers(data):
    import duckdb

    with duckdb.connect(":memory:") as connection:
        for _ in range(4):
            amendments = data.draw(st.lists(ANY, min_size=1, max_size=4))
            assert decode_amendments(encode_amendments(amendments)) == amendments
            assert fetch_amendments(connection, register_amendments(connection, "these", amendments)) == amendments


def test_what_may_change_is_a_field_of_the_record():
    assert set(AMENDABLE) <= set(FIELDS)


def test_a_full_queue_drops_and_counts_by_class(tmp_path):
    (record,) = unsplit(1)
    options = WriterOptions(linger_s=1.0, sealing=False, amendment_capacity=3)
    with RecordWriter(tmp_path, options) as writer:
        taken = [writer.amendments.put(span_of(record, n)) for n in range(5)]
        assert taken == [True, True, True, False, False]
        fact = Amendment(received_unix_ns=1, origin="gateway", request_id="a", cancel_slot_ns=1)
        assert not writer.amendments.put(fact)
        assert not writer.amendments.put(span_of(record, 2**63)), "no segment could hold it"
        assert writer.flush()
        assert writer.amendments.put(fact)
    assert not writer.amendments.put(fact), "it is closed"
    counted = {name: n for name, n in RecordStore(tmp_path).counters().items() if "amendments" in name}
    assert counted == {"amendments.dropped.stages": 3, "amendments.dropped.facts": 1}
    assert writer.counters()["amendments.acknowledged"] == 4
    assert not any(name.startswith("dropped.") for name in writer.counters()), "no request was lost"


def test_retention_takes_amendments_along(tmp_path):
    old, new = unsplit(20, seed=1), unsplit(20, seed=2, t0=T0 + 3 * DAY)
    with RecordWriter(tmp_path, WriterOptions(linger_s=0.002)) as writer:
        for part in (old, new):
            for record in part:
                writer.put(record)
                writer.amendments.put(span_of(record, request_id=record.request_id))
            assert writer.seal_now()
    gone = prune(DataDirectory(tmp_path), older_than_s=86_400, now_unix_ns=T0 + 3 * DAY + DAY // 2)
    assert (gone.records, gone.amendments, gone.segments) == (20, 20, 2)
    store = RecordStore(tmp_path)
    assert store.size()["amendments"] == 20
    assert [one.prefill_ns for one in store.records()] == [1000] * 20
    assert len(list(DataDirectory(tmp_path).segments_of(AMENDMENTS).iterdir())) == 1


def test_a_hot_file_of_before_amendments_is_read_and_adopted(tmp_path):
    records = unsplit(30)
    with RecordWriter(tmp_path, QUICK) as writer:
        for record in records:
            writer.put(record)
    (path,) = DataDirectory(tmp_path).hot_files()
    db = sqlite3.connect(path)
    for table in (AMENDMENTS.batches, AMENDMENTS.seals):
        db.execute(f"drop table {table}")
    db.commit()
    db.close()
    store = RecordStore(tmp_path)
    assert store.records() == records
    assert store.size()["amendments"] == 0
    with RecordWriter(tmp_path, WriterOptions(linger_s=0.002)) as writer:
        writer.amendments.put(span_of(records[3]))
        assert writer.flush()
        deadline = time.monotonic() + 15
        while path.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    assert not path.exists()
    assert [one.prefill_ns for one in store.records()].count(1000) == 1


def test_the_command_shows_amended_records_and_can_leave_amendments_out(root):
    from tailrace.cli.records import app

    def run(*arguments):
        done = CliRunner().invoke(app, [*arguments, "--data-dir", str(root)], catch_exceptions=False)
        assert done.exit_code == 0
        return done.stdout

    slot = RECORDS[5].request_id
    public = json.loads(run("query", "--json", "--id", slot))
    assert public["cancel_slot_ms"] == 5e-6
    assert public["fact_sources"]["cancel_slot_ns"] == "gateway"
    assert "cancel_slot_ms" not in json.loads(run("query", "--json", "--id", slot, "--as-written"))
    for arguments, expected in (([], AMENDED), (["--as-written"], RECORDS)):
        lines = [json.loads(line) for line in run("export", "--limit", "30", *arguments).splitlines()]
        found = [line["stages_ms"].get("prefill") for line in lines]
        assert found == [None if one.prefill_ns is None else one.prefill_ns / 1e6 for one in expected[-30:]]
        answer = json.loads(run("query", "--json", "--ask", "quantiles", "--metric", "prefill", *arguments))
        assert answer["rows"][0]["n"] == sum(one.prefill_ns is not None for one in expected)
    header, *rows = run("export", "--format", "csv", "--limit", "30").splitlines()
    place = header.split(",").index("cancel_slot_ms")
    assert place > 0
    assert len(rows) == 30


@pytest.mark.long("a Python process is started and killed, several times")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("step", ["after_rename", pytest.param("before_finish", marks=pytest.mark.tier("ci"))])
def test_a_killed_process_loses_no_acknowledged_amendment(tmp_path, step):
    where = "writer" if step == "before_finish" else "sealer"
    child = subprocess.run(
        [sys.executable, "-m", "tests.store.processes", "amend", str(tmp_path), step, where],
        stdout=subprocess.PIPE,
        env=child_environment(),
        timeout=40,
        check=False,
    )
    assert child.returncode == -9
    acknowledged = max(map(int, child.stdout.split()))
    assert acknowledged >= 300

    def check():
        store = RecordStore(tmp_path)
        # The last of them came first, by its stamp, and so is the one that counts.
        (record,) = store.records()
        assert record.parts_ns["decode.step"] >= acknowledged - 1
        return store.size()["amendments"]

    assert check() >= acknowledged
    with RecordWriter(tmp_path, WriterOptions(linger_s=0.002)) as writer:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and len(DataDirectory(tmp_path).hot_files()) > 1:
            time.sleep(0.02)
    assert len(DataDirectory(tmp_path).hot_files()) == 0
    assert writer.amendments.acknowledged == 0
    sealed = sum(name.rows for name in list_segments(DataDirectory(tmp_path).amendments).names)
    assert sealed == check() >= acknowledged
