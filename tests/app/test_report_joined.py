"""The report's join with a gateway's records: what was the network's, what the gateway's, who has the tail."""

from __future__ import annotations

import msgspec
import pytest

from tailrace.app.report import report
from tailrace.app.report_joined import joined_section
from tailrace.export.jsonl import encode_lines
from tailrace.model.errors import InputError
from tailrace.store.run_file import Run, RunWriter
from tests.analyze.tables import MS, request, table
from tests.app.report_runs import EVIL, a_run


def gateways(run: Run, network_ms: float = 5.0):
    """The same requests as a gateway saw them: each shorter by what the network took, its first token in `prefill`."""
    return [
        request(
            90_000 + place,
            at_ms=record.start_unix_ns / MS - 1_700_000_000_000,
            lane=record.lane,
            queue_ms=3.0,
            prefill_ms=(record.ttft_ns or record.e2e_ns) / MS - network_ms - 3.0,
            gaps_ms=(20.0,) * 5,
            client_request_id=record.request_id,
            reason=record.reason,
        )
        for place, record in enumerate(run.records)
        if record.e2e_ns > 10 * MS
    ]


def test_both_views_stand_beside_each_other_and_the_stages_are_drawn():
    run = a_run(300)
    section = joined_section(run.table(), table(gateways(run)), dropped=0.0, source="http://127.0.0.1:9480")
    assert "of 300 requests found" in section.markup
    assert "TTFT: network and client" in section.markup
    assert ">5.00<" in section.markup  # the difference, exactly what was taken away
    assert [picture.name for picture in section.pictures] == ["gateway-stages-ttft", "gateway-stages-e2e"]
    assert any(trace["name"] == "prefill" for trace in section.pictures[0].data)


def test_records_of_others_are_said_to_be_none_of_these():
    section = joined_section(a_run(30).table(), table([request(999)]), dropped=0.0, source=EVIL)
    assert "None of the requests is among the records" in section.markup
    assert section.pictures == []
    assert "<img" not in section.markup


def test_the_command_reads_exported_records(tmp_path):
    run = a_run(120)
    with RunWriter(tmp_path / "a.run", run.header) as file:
        file.write_all(run.records)
        file.close(run.trailer)
    lines = tmp_path / "records.jsonl"
    lines.write_bytes(b"".join(encode_lines(gateways(run))))
    out = tmp_path / "a.html"
    report(str(tmp_path / "a.run"), out=out, records=str(lines))
    text = out.read_text(encoding="utf-8")
    assert "Joined with the gateway&#x27;s records" in text
    assert "gateway-stages-e2e" in text
    empty = tmp_path / "none.run"
    with RunWriter(empty, run.header) as file:
        file.close(msgspec.structs.replace(run.trailer, n=0))
    with pytest.raises(InputError, match="no records of requests"):
        report(str(tmp_path / "a.run"), out=out, records=str(empty))
