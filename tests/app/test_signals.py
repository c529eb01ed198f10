"""`tailrace serve` reads its machine: what the admin port, the metrics, the page and a diagnosis make of it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import pytest

from tailrace.app.diagnose import diagnose_sources
from tailrace.app.host_gauges import show_signals
from tailrace.cli.objectives import parse_objectives
from tailrace.export.prometheus import GatewayMetrics
from tailrace.gateway.config_sections import BackendConfig, SignalsConfig
from tailrace.gateway.host.signals import HostSignals
from tests.app.test_serve import ask, get
from tests.children import tailrace_command
from tests.gateway.host.test_gpu_sources import fake_exporter

__all__ = ["fake_exporter"]


def serving(start_tailrace, tmp_path, **more):
    engine = start_tailrace("engine", "--port", "0", "--json")
    config = tmp_path / "tailrace.yaml"
    config.write_text(
        json.dumps(
            {
                "listen": "127.0.0.1:0",
                "admin": "127.0.0.1:0",
                "backends": [{"url": engine.ready["url"]}],
                "records": {"dir": str(tmp_path / "records")},
                **more,
            }
        )
    )
    return engine, start_tailrace("serve", "-c", str(config), "--json").ready


def signals(admin, query=""):
    status, body = get(f"{admin}/signals{query}")
    assert status == 200, body
    return json.loads(body)


def until(look, within_s=10.0):
    end = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)
    return found


@pytest.mark.tier("ci")
def test_a_gateway_beside_its_engine_and_an_exporter(start_tailrace, tmp_path, fake_exporter):
    exporter, _ = fake_exporter
    engine, gateway = serving(start_tailrace, tmp_path, signals={"period": "100ms", "gpu": f"{exporter}/metrics"})
    admin = gateway["admin"]

    def both():
        seen = signals(admin)
        return seen if len(seen["host"]) > 3 and seen["gpus"] else None

    seen = until(both)
    assert seen["engine_pids"][0] == engine.pid
    roles = {process["role"]: process for process in seen["latest"]["host"]["processes"]}
    assert roles["gateway"]["pids"] == [gateway["pid"]]
    assert roles["engine"]["pids"][0] == engine.pid
    assert [state["index"] for state in seen["latest"]["gpus"]] == ["0", "1"]
    assert seen["dcgm_unread"] == ["DCGM_FI_DEV_VGPU_LICENSE_STATUS"]
    assert seen["sampler"]["host"]["cpu_ms_per_sample"] > 0
    newest = seen["host"][-1]["at_unix_ns"]
    assert all(state["at_unix_ns"] > newest for state in signals(admin, f"?since={newest}")["host"])

    text = get(f"{admin}/metrics")[1].decode()
    assert 'tailrace_gpu_sm_active_ratio{gpu="0"} 0.882' in text
    assert 'tailrace_gpu_clock_limited{gpu="0",reason="sw_power_cap"} 1.0' in text
    assert 'tailrace_process_cpu_cores{role="engine"}' in text
    assert "tailrace_gpu_foreign_processes{" not in text  # nobody tells processes here
    assert "GPU 0 busy 97%" in json.loads(get(f"{admin}/page/live")[1])["host"]

    for number in range(3):
        ask(gateway["url"], f"question {number}")
    diagnosis = json.loads(get(f"{admin}/diagnosis")[1])
    sources = {item["source"] for item in diagnosis["observations"]}
    assert {"gpu:dcgm", "host:process"} <= sources

    found = diagnose_sources([admin])
    assert {item.source for item in found.observations} >= {"gpu:dcgm", "host:process"}


def test_switched_off_it_reads_nothing():
    signals = HostSignals(SignalsConfig(enabled=False), BackendConfig(url="http://127.0.0.1:8000"))
    signals.start()
    time.sleep(0.1)
    seen = signals.view()
    signals.close()
    assert (seen["enabled"], seen["host"], seen["latest"]["host"]) == (False, [], None)
    assert seen["absent"]["gpu"] == "switched off (signals.enabled)"
    metrics = GatewayMetrics()
    show_signals(signals, metrics)
    lines = metrics.render()[0].decode().splitlines()
    assert [line for line in lines if line.startswith("tailrace_host_")] == []


@pytest.mark.tier("ci")
def test_several_workers_are_read_once_and_together(start_tailrace, tmp_path):
    _, gateway = serving(start_tailrace, tmp_path, workers=2, signals={"period": "100ms", "gpu": False})
    seen = until(lambda: found if len((found := signals(gateway["admin"]))["host"]) > 2 else None)
    roles = {process["role"]: process for process in seen["latest"]["host"]["processes"]}
    assert roles["gateway"]["pids"] == sorted(gateway["workers"])
    assert seen["absent"]["gpu"] == "switched off (signals.gpu)"
    assert 'tailrace_process_cpu_cores{role="gateway"}' in get(f"{gateway['admin']}/metrics")[1].decode()


@pytest.mark.tier("ci")
@pytest.mark.long("sixteen seconds of load, in some of which another process has the engine's CPU", timeout=120)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="run queues are read on Linux")
def test_an_engine_whose_cpu_is_taken_away_is_diagnosed(start_tailrace, start_child, tmp_path):
    """For real: the engine shares one CPU with a process that goes before it, for two seconds in five."""
    engine, gateway = serving(start_tailrace, tmp_path, signals={"period": "200ms", "gpu": "off"})
    cpu = min(os.sched_getaffinity(0))
    os.sched_setaffinity(engine.pid, {cpu})
    os.sched_setscheduler(engine.pid, os.SCHED_IDLE, os.sched_param(0))
    # Sessions share the CPU among themselves before priorities within them count, where the kernel groups them so.
    with contextlib.suppress(OSError):
        Path(f"/proc/{engine.pid}/autogroup").write_text("19")
    hog = [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"]
    load = start_child(
        *tailrace_command("bench", gateway["url"], "--rate", "20", "--duration", "16", "--out", str(tmp_path / "a.run"))
    )
    for _ in range(3):
        time.sleep(3)
        taking = start_child(*hog)
        time.sleep(2)
        taking.stop()
    with contextlib.suppress(OSError):
        os.sched_setscheduler(engine.pid, os.SCHED_OTHER, os.sched_param(0))  # the rest of the load is not held up
        Path(f"/proc/{engine.pid}/autogroup").write_text("0")
    load.popen.wait(60)
    found = diagnose_sources([gateway["admin"]], objectives=parse_objectives(["ttft_p99=300ms"]))
    starved = next((one for one in found.findings if one.code == "FE_CPU_STARVED"), None)
    assert starved is not None, found.summary
    # On a machine whose other work takes the CPU in the calm seconds too, it says that all requests were hit alike.
    assert starved.level in ("consistent", "suspected"), starved
    assert starved.explains_ms is not None
    assert starved.explains_ms > 100
    assert any(item.name == "run_queue_wait" and (item.value or 0) > 0.1 for item in starved.evidence)
