"""Two records of one request, the gateway's and its application's, are never counted as two requests."""

import msgspec
import pytest

from tailrace.diagnose.readers.data_directory import read_directory
from tailrace.store.queries import QUERIES
from tailrace.store.query import RecordStore
from tailrace.store.writer import RecordWriter, WriterOptions
from tests.store.samples import realistic

pytestmark = pytest.mark.tier("ci")

OWN = realistic(300, kept=0.05, failing=0.1, step_ns=2_000_000_000)
# The same requests by the same ids (as with `trust_request_id`), seen by the service, and slower by a second.
MINE = [
    msgspec.structs.replace(
        record,
        vantage="application",
        service="rag",
        model_ns=record.e2e_ns,
        unattributed_ns=10**9,
        e2e_ns=record.e2e_ns + 10**9,
        timeline=None,
    )
    for record in OWN
]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """(a store with both vantages, one with the gateway's records alone); half sealed, half hot."""
    out = []
    for name, records in (("both", [one for pair in zip(OWN, MINE, strict=True) for one in pair]), ("own", OWN)):
        where = tmp_path_factory.mktemp(name)
        with RecordWriter(where, WriterOptions(linger_s=0.002, seal_rows=200)) as writer:
            half = len(records) // 2
            for record in records[:half]:
                writer.put(record)
            assert writer.seal_now()
            for record in records[half:]:
                writer.put(record)
        out.append(RecordStore(where))
    return tuple(out)


@pytest.mark.parametrize("name", QUERIES)
def test_no_question_sees_the_other_vantage_unless_it_is_asked_to(stores, name):
    both, own = stores
    assert both.ask(name).rows == own.ask(name).rows
    if name == "quantiles":
        theirs = both.ask(name, metric="e2e", vantage="application").dicts()[0]
        assert theirs["n"] == len(MINE)
        assert theirs["p50_ms"] == pytest.approx(both.ask(name, metric="e2e").dicts()[0]["p50_ms"] + 1000)


def test_tables_limits_and_order(stores):
    both, own = stores
    assert both.records() == own.records()
    assert len(both.table(limit=10)) == 10
    assert both.table(limit=10).column("request_id").tolist() == own.table(limit=10).column("request_id").tolist()
    slow = both.table(limit=5, slowest_by="e2e_ns")
    assert set(slow.column("vantage")) == {"gateway"}
    mine = both.table(limit=7, vantage="application", equal={"outcome": "failed"})
    assert set(mine.column("vantage")) == {"application"}
    assert len(both.table(vantage=None)) == len(OWN) + len(MINE)
    assert list(both.table(vantage="application").records()) == MINE


def test_by_id_the_gateways_is_found_first(stores):
    both, own = stores
    wanted = OWN[7].request_id
    for found in (both.get(wanted), both.get(wanted, vantage="gateway"), own.get(wanted)):
        assert found is not None
        assert (found.vantage, found.e2e_ns) == ("gateway", OWN[7].e2e_ns)
    found = both.get(wanted, vantage="application")
    assert found is not None
    assert (found.vantage, found.service, found.model_ns) == ("application", "rag", OWN[7].e2e_ns)
    assert own.get(wanted, vantage="application") is None


def test_a_diagnosis_reads_both_and_keeps_them_apart(stores):
    both, _ = stores
    table, _ = read_directory(both.directory.root)
    assert len(table) == len(OWN) + len(MINE)
