"""Sources of accelerator readings. No device is here: each is a fake that answers as the real one is documented to."""

from __future__ import annotations

import sys
import textwrap
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tailrace.gateway.host.gpu_sources import Dcgm, GpuUnreadableError, NvidiaSmi, choose_gpu_source
from tests.engines.test_dcgm import READ_IN_SOURCE

FAKE_NVIDIA_SMI = r"""#!/bin/sh
# A fake nvidia-smi: an old driver that knows the old names only.
case "$1" in
  *clocks_event_reasons*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2 ;;
  --query-gpu=*)
    echo 'index, uuid, name, utilization.gpu [%], memory.used [MiB], clocks.current.sm [MHz], power.draw [W],' \
      'clocks_throttle_reasons.active'
    echo '0, GPU-aaa, Card 80GB, 91 %, 72000 MiB, 1410 MHz, 300.10 W, 0x0000000000000004'
    echo '1, GPU-bbb, Card 80GB, 0 %, 10 MiB, 210 MHz, 50.00 W, 0x0000000000000001' ;;
  --query-compute-apps=*)
    echo 'gpu_uuid, pid, process_name, used_gpu_memory [MiB]'
    echo 'GPU-aaa, 4711, VLLM::EngineCore, 70000 MiB'
    echo 'GPU-aaa, 99, python3 train.py, 1900 MiB' ;;
esac
"""
FAKE_PYNVML = """
class NVMLError(Exception):
    pass

class _Of:
    def __init__(self, **values):
        self.__dict__.update(values)

def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(number): return number
def nvmlDeviceGetUUID(device): return b"GPU-aaa"
def nvmlDeviceGetName(device): return b"Card 80GB"
def nvmlDeviceGetUtilizationRates(device): return _Of(gpu=93, memory=41)
def nvmlDeviceGetMemoryInfo(device): return _Of(used=7, free=3, total=10)
def nvmlDeviceGetClockInfo(device, kind): return {1: 1410, 2: 1593}[kind]
def nvmlDeviceGetPowerUsage(device): return 300100
def nvmlDeviceGetEnforcedPowerLimit(device): raise NVMLError("Not Supported")
def nvmlDeviceGetTemperature(device, sensor): return 61
def nvmlDeviceGetCurrentClocksThrottleReasons(device): return 0x40
def nvmlDeviceGetComputeRunningProcesses(device):
    return [_Of(pid=4711, usedGpuMemory=5), _Of(pid=9, usedGpuMemory=None)]
"""


@pytest.fixture
def fake_nvidia_smi(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(FAKE_NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program


@pytest.fixture
def fake_pynvml(tmp_path, monkeypatch):
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "pynvml.py").write_text(textwrap.dedent(FAKE_PYNVML))
    monkeypatch.syspath_prepend(str(tmp_path / "fake"))
    yield
    sys.modules.pop("pynvml", None)


@pytest.fixture
def no_pynvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)


@pytest.fixture
def fake_exporter():
    """A fake DCGM exporter on a real socket; `pages` is what it answers, path -> (status, text)."""
    pages = {"/metrics": (200, READ_IN_SOURCE)}

    class Exporter(BaseHTTPRequestHandler):
        def do_GET(self):
            status, text = pages.get(self.path, (404, ""))
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", pages
    server.shutdown()
    thread.join()
    server.server_close()


def test_nvidia_smi_of_an_old_driver_with_its_processes(fake_nvidia_smi):
    source = NvidiaSmi(str(fake_nvidia_smi))
    one, other = source.read()
    assert (one.utilisation, one.sm_clock_mhz, one.reasons) == (0.91, 1410, ["sw_power_cap"])
    assert [(process.pid, process.memory_bytes) for process in one.processes] == [(4711, 70000 << 20), (99, 1900 << 20)]
    assert other.processes == []
    assert one.at_unix_ns is not None
    assert len(source.read()) == 2  # it has learnt which names this driver knows


def test_nvidia_smi_that_fails_says_why(tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\necho "NVIDIA-SMI has failed because it couldn\'t communicate with the driver."\nexit 9\n'
    )
    program.chmod(0o755)
    with pytest.raises(GpuUnreadableError, match="couldn't communicate"):
        NvidiaSmi(str(program)).read()


def _program(tmp_path, text):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return NvidiaSmi(str(program))


def test_nvidia_smi_that_never_stops_printing_is_cut_off(tmp_path):
    with pytest.raises(GpuUnreadableError, match="more than 1 MiB"):
        _program(tmp_path, "exec yes 1,2,3").read()


def test_nvidia_smi_that_hangs_is_ended_with_the_gateway(tmp_path):
    source = _program(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    found = []

    def read():
        with pytest.raises(GpuUnreadableError) as error:
            source.read()
        found.append(str(error.value))

    thread = threading.Thread(target=read)
    thread.start()
    deadline = time.monotonic() + 10
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    source.interrupt()
    thread.join(5)
    assert found
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_nvml_gives_what_the_device_has_and_nothing_else(fake_pynvml):
    source, why = choose_gpu_source("auto")
    assert source is not None
    assert (source.name, why) == ("nvml", "")
    (one,) = source.read()
    source.close()
    assert (one.uuid, one.name, one.utilisation, one.memory_total_bytes) == ("GPU-aaa", "Card 80GB", 0.93, 10)
    assert (one.sm_clock_mhz, one.memory_clock_mhz, one.power_w, one.temperature_c) == (1410, 1593, 300.1, 61)
    assert one.reasons == ["hw_thermal"]
    assert one.power_limit_w is None  # not supported
    assert one.max_sm_clock_mhz is None  # a binding that has no such call
    assert [process.pid for process in one.processes] == [4711, 9]


def test_auto_takes_the_program_where_the_module_is_absent(no_pynvml, fake_nvidia_smi):
    source, _ = choose_gpu_source("auto")
    assert isinstance(source, NvidiaSmi)


def test_auto_with_neither_says_so(no_pynvml, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    source, why = choose_gpu_source("auto")
    assert source is None
    assert "neither" in why
    assert choose_gpu_source("off") == (None, "switched off (signals.gpu)")


def test_the_exporter_over_http_with_processes_from_beside_it(fake_exporter, fake_nvidia_smi):
    url, _ = fake_exporter
    one, other = Dcgm(url, NvidiaSmi(str(fake_nvidia_smi))).read()
    assert (one.source, one.sm_active, one.dram_active) == ("dcgm", 0.882, 0.642)
    assert [process.pid for process in one.processes] == [4711, 99]
    assert other.processes == []


def test_without_anything_beside_it_processes_are_absent(fake_exporter, monkeypatch):
    url, _ = fake_exporter
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # a proxy of the environment is not for this
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    source = Dcgm(f"{url}/metrics")
    assert source.read()[0].processes is None
    assert source.unread == ["DCGM_FI_DEV_VGPU_LICENSE_STATUS"]


def test_an_exporter_that_has_nothing_or_fails_is_an_error(fake_exporter):
    url, pages = fake_exporter
    pages["/metrics"] = (200, "go_goroutines 12\n")
    with pytest.raises(GpuUnreadableError, match="no metric of DCGM"):
        Dcgm(url).read()
    pages["/metrics"] = (500, "")
    with pytest.raises(GpuUnreadableError, match="answers 500"):
        Dcgm(url).read()
    with pytest.raises(OSError):
        Dcgm("http://127.0.0.1:1").read()
