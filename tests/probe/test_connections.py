"""Connections and the stamps around them: kept or new, redirects, the first byte, the time before the send."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tailrace.model.outcome import Reason
from tailrace.model.thresholds import MS
from tests.probe.raw_server import END, HEAD, Call, RawServer, chunk, last, serving, token, whole
from tests.probe.running import run, spec_for


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("new", [True, False])
def test_connections_are_kept_unless_new_ones_are_asked_for(tmp_path: Path, *, new: bool, processes: int):
    with serving(RawServer(Call.answer)) as server:
        spec = spec_for(server.url, requests=12, concurrency=2, new_connections=new)
        result = run(spec, tmp_path, processes=processes)
        used = len({call.connection for call in server.calls})
    assert used == (12 if new else 2)
    assert result.summary.client.connections_opened == used
    assert sum(r.connection_reused is False for r in result.records) == used
    assert all((r.connect_ns is not None) == (r.connection_reused is False) for r in result.records)
    assert result.summary.errors == {}


def test_a_redirect_is_an_error_that_names_where_to(tmp_path: Path):
    async def away(call: Call) -> None:
        await call.send(whole(307, b"", more="location: http://other:8000/v1/chat/completions\r\n"))

    with serving(RawServer(away)) as server:
        result = run(spec_for(server.url), tmp_path)
    assert result.summary.errors == {"protocol_error": 3}
    assert {r.error for r in result.records} == {"redirected to http://other:8000/v1/chat/completions (307)"}
    assert {r.reason for r in result.records} == {Reason.PROTOCOL_ERROR}


def test_the_first_byte_has_its_own_stamp(tmp_path: Path):
    async def slowly(call: Call) -> None:
        await asyncio.sleep(0.03)
        await call.send(HEAD[:9])
        await asyncio.sleep(0.05)
        await call.send(HEAD[9:])
        await asyncio.sleep(0.03)
        await call.send(chunk(token()), chunk(last(1)), END)

    with serving(RawServer(slowly)) as server:
        records = run(spec_for(server.url, mix="a=10/1"), tmp_path).records
    for r in records:
        assert r.first_byte_ns is not None
        assert r.headers_ns is not None
        assert r.ttft_ns is not None
        assert r.first_byte_ns > 29 * MS
        assert r.first_byte_ns + 49 * MS < r.headers_ns
        assert r.headers_ns + 29 * MS < r.ttft_ns <= r.e2e_ns


def test_the_wait_for_a_slot_is_no_late_send(tmp_path: Path):
    async def half(call: Call) -> None:
        await asyncio.sleep(0.05)
        await call.answer()

    with serving(RawServer(half)) as server:
        result = run(spec_for(server.url, rate=40, requests=30, concurrency=1), tmp_path)
    last_one = max(result.records, key=lambda r: r.run_offset_ns or 0)
    assert last_one.intended_to_queued_ns is not None
    assert last_one.intended_to_sent_ns is not None
    # It came while half of the others still waited: taken up at its time, sent when its turn came.
    assert last_one.intended_to_sent_ns - last_one.intended_to_queued_ns > 300 * MS
    assert all((r.intended_to_queued_ns or 0) <= (r.intended_to_sent_ns or 0) for r in result.records)
    with serving(RawServer(Call.answer)) as server:
        closed = run(spec_for(server.url), tmp_path)
    assert {(r.intended_to_queued_ns, r.intended_to_sent_ns) for r in closed.records} == {(None, None)}


def test_a_fault_of_our_own_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What broke once breaks again when the run is ended for it: the run ends all the same, with the first error."""
    from tailrace.probe.exchange import Exchange

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    async def forever(call: Call) -> None:
        await call.send(HEAD, chunk(token()))
        await asyncio.sleep(30)

    monkeypatch.setattr(Exchange, "_close", broken)
    began = time.monotonic()
    with serving(RawServer(forever)) as server, pytest.raises(RuntimeError, match="broken"):
        run(spec_for(server.url, concurrency=2, total_ms=500), tmp_path)
    assert time.monotonic() - began < 10
