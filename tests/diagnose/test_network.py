"""GW_NETWORK: the way to the engine, told from the engine."""

import msgspec
import numpy as np

from tailrace.app.diagnose import diagnose_sources
from tailrace.model.finding import Action, Layer, Level
from tests.diagnose.simulated import answer, as_client, as_gateway, codes, found, served

CODE = "GW_NETWORK"


# -- what a proxy says of its own time

SIDES = "| | client TTFT p50 (ms) | server TTFT p50 (ms) |\n|---|---|---|\n| now | 300 | 105 |\n"


def proxied(folder, *headers):
    (folder / "sides.md").write_text(SIDES)
    (folder / "h.txt").write_text("HTTP/1.1 200 OK\n" + "\n".join(headers) + "\n")
    return found(diagnose_sources([str(folder / "sides.md"), str(folder / "h.txt")]), CODE)


def test_the_overhead_that_litellm_tells_is_no_part_of_the_way(tmp_path):
    own = ("x-litellm-overhead-duration-ms: 30.5", "x-litellm-callback-duration-ms: 4.5")
    finding = proxied(tmp_path, *own)
    assert finding.explains_ms == 160.0
    assert finding.relation == "300 - 105 - 35 (the proxy's own) = 160 ms"
    assert any("35 ms are its own" in item.text for item in finding.evidence)
    # What remains is little: the proxy took it, not the way.
    assert proxied(tmp_path, "x-litellm-overhead-duration-ms: 150") is None


def far(records, ms, share=0.03, *, rtt=False, prefill=1.0, usual_ms=0.4, retransmits=1):
    """Some requests open a connection for `ms`, or (`rtt`) wait half of it twice, before the engine has them."""
    rng = np.random.default_rng(0)
    out = []
    for record in records:
        spent = int(rng.uniform(0.5, 1.5) * ms * 1e6) if rng.random() < share else 0
        usual = int(usual_ms * 1e6)
        more = int((record.prefill_ns or 0) * (prefill - 1.0)) if spent and record.prefill_ns is not None else 0
        line = record.timeline
        added = spent + more
        out.append(
            msgspec.structs.replace(
                record,
                connect_ns=spent if spent and not rtt else None,
                connection_reused=not spent,
                upstream_rtt_ns=(spent // 2 if spent and rtt else usual),
                upstream_retransmits=retransmits if spent else 0,
                queue_ns=record.queue_ns + spent,
                prefill_ns=None if record.prefill_ns is None else record.prefill_ns + more,
                e2e_ns=record.e2e_ns + added,
                ttft_ns=record.ttft_ns + added,
                e2e_last_token_ns=record.e2e_last_token_ns + added,
                timeline=msgspec.structs.replace(line, at_ns=[at + added for at in line.at_ns]),
            )
        )
    return out


def calm():
    return as_gateway(served(rate=4.0, long_share=0.0))


def test_connections_that_take_long_to_open():
    first = answer(far(calm(), 1500)).findings[0]
    assert (first.code, first.layer, first.level) == (CODE, Layer.GATEWAY, Level.CONSISTENT)
    assert first.action is Action.FIX
    assert first.explains_ms > 700
    assert any("sent again" in fact.text for fact in first.evidence)


def test_round_trips_alone():
    first = answer(far(calm(), 1500, rtt=True, retransmits=0)).findings[0]
    assert first.code == CODE
    assert not any("sent again" in fact.text for fact in first.evidence)


def test_an_engine_that_was_slow_for_them_too_is_not_the_networks_fault():
    assert CODE not in codes(answer(far(calm(), 1500, prefill=8.0)))


def test_a_way_that_is_as_long_for_everybody_is_not_what_makes_the_tail():
    assert CODE not in codes(answer(far(calm(), 1500, rtt=True, usual_ms=900)))


def test_a_quick_connection_is_not_a_finding():
    assert answer(far(calm(), 20)).findings == []


def test_a_gateway_that_stood_still_meanwhile_does_not_blame_the_network():
    records = [msgspec.structs.replace(r, loop_lag_ns=r.connect_ns or 0, gateway_cpu=0.9) for r in far(calm(), 1500)]
    result = answer(records)
    assert CODE not in codes(result)
    assert result.findings[0].code == "GW_SELF_BOTTLENECK"


def test_without_the_engines_stages_it_is_suspected():
    records = [
        msgspec.structs.replace(
            record,
            prefill_ns=None,
            unattributed_ns=record.prefill_ns,
            stage_sources={**record.stage_sources, "unattributed": "inferred(remainder)"},
        )
        for record in far(calm(), 1500)
    ]
    finding = found(answer(records), CODE)
    assert finding is not None
    assert finding.level is Level.SUSPECTED


def test_without_the_hops_nothing_can_be_said_of_them():
    records = [msgspec.structs.replace(r, connect_ns=None, upstream_rtt_ns=None) for r in far(calm(), 1500)]
    result = answer(records)
    assert CODE not in codes(result)
    assert any(need.startswith(CODE) for need in result.needs)
    result = answer(as_client(served(rate=25.0, long_share=0.0, max_num_seqs=32)))
    assert any(need.startswith(CODE) for need in result.needs)
