"""Where accelerator readings come from: a DCGM exporter, NVML through `pynvml`, or the program `nvidia-smi`."""

from __future__ import annotations

import http.client
import importlib
import shutil
import ssl
import subprocess
import threading
from time import monotonic_ns, time_ns
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import msgspec

from tailrace.engines.clock_reasons import decode
from tailrace.engines.dcgm import read_dcgm
from tailrace.engines.nvidia_smi import APPS_QUERY, GPU_QUERIES, read_apps, read_query
from tailrace.model.gpu_state import GpuProcess, GpuState

_TIMEOUT_S: Final = 2.0
_SMI_TIMEOUT_S: Final = 10.0
"""Without persistence mode the driver is loaded for each call, which takes seconds."""
_MOST_BYTES: Final = 8 << 20
_MOST_SMI_BYTES: Final = 1 << 20
"""Sixteen devices with a thousand processes are a tenth of that."""
_NVML_SM: Final = 1
_NVML_MEM: Final = 2


class GpuSource(Protocol):
    """Reads all devices. May block; raises whatever is wrong."""

    name: str
    period_s: float
    """The least time between two reads, by what a read costs."""

    def read(self) -> list[GpuState]:
        """All devices now."""

    def interrupt(self) -> None:
        """Give up a read that hangs in another thread, where that is possible."""

    def close(self) -> None:
        """End what is held."""


class GpuUnreadableError(Exception):
    """Why there is no reading."""


class Dcgm:
    """A DCGM exporter's `/metrics`; processes, which it does not know, from `beside` where there is one."""

    name = "dcgm"
    period_s = 1.0

    def __init__(self, url: str, beside: GpuSource | None = None) -> None:
        self._url = urlsplit(url)
        self._path = (self._url.path or "/metrics") + (f"?{self._url.query}" if self._url.query else "")
        self._beside = beside
        self._processes: dict[str, list[GpuProcess]] = {}
        self._asked_ns: int | None = None
        self.unread: list[str] = []
        """Names of DCGM's in the last scrape that are not read."""

    def read(self) -> list[GpuState]:
        """One scrape."""
        text = self._get()
        states, self.unread = read_dcgm(text, monotonic_ns(), time_ns())
        if not states:
            raise GpuUnreadableError("the answer holds no metric of DCGM's")
        self._ask_beside()
        return [
            msgspec.structs.replace(state, processes=self._processes[state.uuid])
            if state.uuid in self._processes
            else state
            for state in states
        ]

    def interrupt(self) -> None:
        """The scrape has its own bound."""
        if self._beside is not None:
            self._beside.interrupt()

    def close(self) -> None:
        """End what is held."""
        if self._beside is not None:
            self._beside.close()

    def _ask_beside(self) -> None:
        beside, now = self._beside, monotonic_ns()
        if beside is None or (self._asked_ns is not None and now - self._asked_ns < beside.period_s * 1e9):
            return
        self._asked_ns = now
        try:
            self._processes = {state.uuid: state.processes for state in beside.read() if state.processes is not None}
        except Exception:  # noqa: BLE001  (it is an addition: the scrape stands without it)
            self._processes = {}

    def _get(self) -> str:
        # Not urllib: a proxy of the environment is not for this.
        secure = self._url.scheme == "https"
        host, port = self._url.hostname or "", self._url.port
        connection = (
            http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=ssl.create_default_context())
            if secure
            else http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        )
        try:
            connection.request("GET", self._path)
            answer = connection.getresponse()
            body = answer.read(_MOST_BYTES)
        finally:
            connection.close()
        if answer.status != 200:
            raise GpuUnreadableError(f"the exporter answers {answer.status}")
        return body.decode("utf-8", "replace")


class NvidiaSmi:
    """The program, started for each reading."""

    name = "nvidia-smi"
    period_s = 5.0

    def __init__(self, program: str) -> None:
        self._program = program
        self._query = 0
        """Which of `GPU_QUERIES` this driver understands."""
        self._child: subprocess.Popen[bytes] | None = None
        self._failure = ""

    def read(self) -> list[GpuState]:
        """One call for the devices, one for the processes on them."""
        text = self._devices()
        states, _ = read_query(text, monotonic_ns(), time_ns())
        if not states:
            raise GpuUnreadableError("nvidia-smi prints no device")
        apps = self._run(f"--query-compute-apps={APPS_QUERY}")
        if apps is None:
            return states
        processes = read_apps(apps)
        return [msgspec.structs.replace(state, processes=processes.get(state.uuid, [])) for state in states]

    def interrupt(self) -> None:
        """End the program: a driver that hangs would leave it behind."""
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """Nothing is held."""

    def _devices(self) -> str:
        for number in range(self._query, len(GPU_QUERIES)):
            said = self._run(f"--query-gpu={GPU_QUERIES[number]}")
            if said is not None:
                self._query = number
                return said
            if "not a valid field" not in self._failure:
                break
        raise GpuUnreadableError(self._failure or "nvidia-smi failed without a word")

    def _run(self, query: str) -> str | None:
        """What it prints; `None` where it fails, and then `_failure` is its first line. Bounded in time and size."""
        with subprocess.Popen(  # noqa: S603  (a program found on the path, arguments of our own)
            [self._program, query, "--format=csv"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as child:
            self._child = child
            over = threading.Timer(_SMI_TIMEOUT_S, child.kill)
            over.daemon = True
            over.start()
            try:
                assert child.stdout is not None
                body = child.stdout.read(_MOST_SMI_BYTES + 1)
                if len(body) > _MOST_SMI_BYTES:
                    child.kill()
                code = child.wait()
            finally:
                over.cancel()
                self._child = None
        if len(body) > _MOST_SMI_BYTES:
            raise GpuUnreadableError(f"nvidia-smi prints more than {_MOST_SMI_BYTES >> 20} MiB")
        if code < 0:
            raise GpuUnreadableError(f"nvidia-smi did not answer within {_SMI_TIMEOUT_S:g} s")
        text = body.decode("utf-8", "replace")
        lines = text.strip().splitlines()
        self._failure = lines[0] if lines else ""
        return text if code == 0 else None


class Nvml:
    """NVIDIA's library through its Python binding, loaded once."""

    name = "nvml"
    period_s = 1.0

    def __init__(self) -> None:
        """ImportError without the binding; whatever NVML raises without a driver."""
        self._nvml: Any = importlib.import_module("pynvml")
        self._nvml.nvmlInit()

    def read(self) -> list[GpuState]:
        """All devices."""
        nvml = self._nvml
        return [self._device(number) for number in range(nvml.nvmlDeviceGetCount())]

    def interrupt(self) -> None:
        """A call into the library cannot be given up."""

    def close(self) -> None:
        """Let go of the library."""
        self._nvml.nvmlShutdown()

    def _device(self, number: int) -> GpuState:
        nvml, names = self._nvml, dict[str, str]()
        device = nvml.nvmlDeviceGetHandleByIndex(number)

        def ask(call: str, *more: Any, signal: str = "") -> Any:
            """What a device or a driver does not have is absent; the others stand."""
            function = getattr(nvml, call, None)
            if function is None:
                return None
            try:
                answer = function(device, *more)
            except nvml.NVMLError:
                return None
            if signal:
                names[signal] = call
            return answer

        used = ask("nvmlDeviceGetUtilizationRates", signal="utilisation")
        memory = ask("nvmlDeviceGetMemoryInfo", signal="memory_used_bytes")
        power = ask("nvmlDeviceGetPowerUsage", signal="power_w")
        limit = ask("nvmlDeviceGetEnforcedPowerLimit", signal="power_limit_w")
        mask = ask("nvmlDeviceGetCurrentClocksEventReasons", signal="reasons")
        if mask is None:
            mask = ask("nvmlDeviceGetCurrentClocksThrottleReasons", signal="reasons")
        running = ask("nvmlDeviceGetComputeRunningProcesses", signal="processes")
        return GpuState(
            index=str(number),
            at_ns=monotonic_ns(),
            at_unix_ns=time_ns(),
            source="nvml",
            uuid=_text(ask("nvmlDeviceGetUUID")),
            name=_text(ask("nvmlDeviceGetName")),
            utilisation=None if used is None else used.gpu / 100,
            memory_used_bytes=None if memory is None else memory.used,
            memory_free_bytes=None if memory is None else memory.free,
            memory_total_bytes=None if memory is None else memory.total,
            sm_clock_mhz=ask("nvmlDeviceGetClockInfo", _NVML_SM, signal="sm_clock_mhz"),
            max_sm_clock_mhz=ask("nvmlDeviceGetMaxClockInfo", _NVML_SM, signal="max_sm_clock_mhz"),
            memory_clock_mhz=ask("nvmlDeviceGetClockInfo", _NVML_MEM, signal="memory_clock_mhz"),
            reasons=None if mask is None else decode(mask),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            temperature_c=ask("nvmlDeviceGetTemperature", 0, signal="temperature_c"),
            processes=None if running is None else [_process(one) for one in running],
            names=names,
        )


def _text(value: Any) -> str:
    """Bindings before 11.5 give bytes."""
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _process(one: Any) -> GpuProcess:
    return GpuProcess(pid=one.pid, memory_bytes=one.usedGpuMemory)


def choose_gpu_source(wanted: str) -> tuple[GpuSource | None, str]:
    """(the source, why there is none). `wanted`: `auto`, `off`, or the URL of a DCGM exporter."""
    if wanted == "off":
        return None, "switched off (signals.gpu)"
    local, why = _local()
    if wanted != "auto":
        return Dcgm(wanted, local), ""
    return local, why


def _local() -> tuple[GpuSource | None, str]:
    try:
        return Nvml(), ""
    except ImportError:
        why = "neither the Python module pynvml nor nvidia-smi is here"
    except Exception as error:  # noqa: BLE001  (NVML's own errors, of a module that may be absent)
        why = f"NVML: {error}"
    program = shutil.which("nvidia-smi")
    return (NvidiaSmi(program), "") if program else (None, why)
