"""One request seen by the client and by the gateway: what lies between the two, and why some have no other side."""

import msgspec
import pytest

from tailrace.analyze.joined import OUTSIDE, joined
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tailrace.store.table import RecordTable

MS = 1_000_000
T0 = 1_790_000_000_000_000_000


def client(n, *, e2e=200, ttft=50, connect=None, at_ms=0, **more):
    return RequestRecord(
        request_id=f"ab12-{n}",
        vantage="client",
        start_unix_ns=T0 + (n + at_ms) * MS,
        e2e_ns=round(e2e * MS),
        unattributed_ns=round(e2e * MS),
        ttft_ns=round(ttft * MS),
        connect_ns=None if connect is None else round(connect * MS),
        **({"outcome": OutcomeKind.COMPLETED} | more),
    )


def gateway(n, *, queue=10, prefill=30, decode=150, name=None, at_ms=0, **more):
    stages = {"queue_ns": queue * MS, "prefill_ns": prefill * MS, "decode_ns": decode * MS}
    return RequestRecord(
        request_id=f"gw-{n}",
        client_request_id=f"ab12-{n}" if name is None else name,
        start_unix_ns=T0 + (n + at_ms) * MS,
        e2e_ns=sum(stages.values()),
        ttft_ns=(queue + prefill) * MS,
        **stages,
        **({"outcome": OutcomeKind.COMPLETED} | more),
    )


def table(records):
    return RecordTable.from_records(list(records))


def test_durations_are_subtracted_request_by_request():
    run = table([client(0, e2e=200, ttft=50, connect=2), client(1, e2e=300, ttft=47), client(2)])
    records = table([gateway(1, decode=250), gateway(0)])
    both = joined(run, records)
    assert (both.matched, both.in_run, both.in_records) == (2, 3, 2)
    outside = both.spreads["outside_e2e"]
    assert (outside.n, outside.p50, outside.max) == (2, 10.0, 10.0)
    assert outside.p99 is None, "two requests have no p99"
    assert both.spreads["outside_ttft"].max == 10.0
    assert both.spreads["connect"].n == 1
    assert both.spreads["stage.queue"].p50 == 10.0
    assert "stage.encode" not in both.spreads
    assert both.owners == []
    text = "\n".join(both.lines())
    assert "client 10.0 ms at the median\n" in text
    assert "p99" not in text, "what n does not support is not in a sentence"


def test_the_last_of_repeated_records_counts():
    run = table([client(0)])
    failed = {"outcome": OutcomeKind.FAILED, "reason": Reason.STREAM_CUT}
    both = joined(run, table([gateway(0, at_ms=5), gateway(0, queue=90, **failed)]))
    assert both.repeated == 1
    assert both.differing == 0
    assert both.spreads["stage.queue"].max == 10.0


def test_a_gateway_that_takes_the_clients_id_as_its_own_is_joined_by_it():
    one = msgspec.structs.replace(gateway(0, name=""), request_id="ab12-0")
    assert joined(table([client(0)]), table([one])).matched == 1


@pytest.mark.parametrize("slow", ["queue", "network"])
def test_the_side_that_owns_the_tail_is_named(slow):
    n = 1000
    wait = [900 if number % 50 == 0 else 0 for number in range(n)]
    inside = wait if slow == "queue" else [0] * n
    run = table(client(i, e2e=200 + wait[i], ttft=50 + wait[i]) for i in range(n))
    records = table(gateway(i, queue=10 + inside[i]) for i in range(n))
    both = joined(run, records)
    by = {owner.metric: owner for owner in both.owners}
    assert by["e2e"].owner == ("queue" if slow == "queue" else OUTSIDE)
    assert by["ttft"].owner == ("gateway" if slow == "queue" else OUTSIDE)
    assert by["e2e"].share > 0.99
    assert by["e2e"].n == 10
    assert by["e2e"].excess_ms[by["e2e"].owner] == pytest.approx(900)
    said = "\n".join(both.lines())
    assert f"is owned by {by['e2e'].owner}" in said
    assert "1,000 of 1,000 requests found" in said
    if slow == "network":
        assert both.spreads["outside_e2e"].p99 == pytest.approx(910, rel=0.02)


def test_why_a_request_of_the_run_has_no_record():
    unreached = {"outcome": OutcomeKind.FAILED, "reason": Reason.ENGINE_UNREACHABLE}
    run = table(
        [
            client(0),
            client(1, **unreached),
            client(2, at_ms=-60_000),
            client(3, at_ms=60_000),
            client(4),
        ]
    )
    lost = joined(run, table([gateway(0)]), dropped=0.02).only_in_run
    assert {why.partition(":")[0]: count for why, count in lost.items()} == {
        "never reached it": 1,
        "before its oldest record": 1,
        "after its newest record": 1,
        "dropped": 1,
    }
    (why,) = joined(table([client(4), client(0)]), table([gateway(0)])).only_in_run
    assert why.startswith("no record, and none is known to be dropped")
    (why,) = joined(table([client(0)]), table([gateway(0, name="else")])).only_in_run
    assert why.startswith("other ids")
    assert joined(table([client(0)]), table([])).only_in_run == {"no records at all": 1}


def test_why_a_record_is_none_of_the_run():
    records = [
        gateway(0),
        gateway(1, name="tailrace-look-48"),
        gateway(2, name="ab12-w7"),
        gateway(3, name=""),
        gateway(4, name="somebody"),
        gateway(5, name="later", at_ms=60_000),
    ]
    both = joined(table([client(0)]), table(records))
    assert both.only_in_records == {
        "of the look before the run": 1,
        "of the warm-up": 1,
        "without an id of a client: other traffic": 1,
        "with other ids: other traffic, or another run": 1,
        "of another time": 1,
    }
    assert both.matched + sum(both.only_in_records.values()) == both.in_records


def test_a_gateway_that_is_busy_longer_than_its_client_is_said():
    both = joined(table([client(0, e2e=100)]), table([gateway(0)]))
    assert any("busy longer than the client" in line for line in both.lines())


def test_an_outcome_that_only_one_side_saw_is_counted():
    left = {"outcome": OutcomeKind.CANCELLED, "reason": Reason.CLIENT_DISCONNECT}
    assert joined(table([client(0)]), table([gateway(0, **left)])).differing == 1
