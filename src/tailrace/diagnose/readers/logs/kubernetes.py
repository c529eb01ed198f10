"""What Kubernetes says of a container's probes and ends: `kubectl get events`, `kubectl describe pod`, a kubelet's log.

41m   Warning   Unhealthy   pod/vllm-0   Liveness probe failed: Get "http://…/health": context deadline exceeded
40m   Normal    Killing     pod/vllm-0   Container vllm failed liveness probe, will be restarted
Liveness:  http-get http://:8000/health delay=0s timeout=1s period=10s #success=1 #failure=3
"""

from __future__ import annotations

import re
from typing import Final

from tailrace.diagnose.observed import Place, Setting
from tailrace.diagnose.readers.logs.context import Context

__all__ = ["Kubernetes"]

_FAILED: Final = re.compile(rb"(Liveness|Readiness|Startup) probe failed")
_KILLED: Final = re.compile(rb"failed (liveness|startup) probe, will be (?:restarted|killed)")
_LATE: Final = re.compile(rb"deadline exceeded|Client\.Timeout|timed? ?out", re.IGNORECASE)
_TIMES: Final = re.compile(rb"\(x(\d+) over ")
_POD: Final = re.compile(rb"\b(?:pod/|pods?[ =\"]+)([\w.-]+)")
_OOM: Final = re.compile(rb"OOMKilled|OOMKilling|Out of memory: Killed process")
_PROBE: Final = re.compile(
    rb"^\s*(Liveness|Readiness|Startup):\s+(\S+(?: [^ ]*/[^ ]*)?).*?\btimeout=(\d+)s period=(\d+)s.*?#failure=(\d+)"
)


class Kubernetes:
    """Events of probes, and the probes that `describe` prints."""

    dialect = "kubernetes events"

    def __init__(self, context: Context) -> None:
        """`context` gets the events."""
        self.context = context
        self.settings: list[Setting] = []

    def line(self, text: bytes) -> bool:
        """A line that tells of a probe, or of memory; False where it is none."""
        killed = _KILLED.search(text)
        failed = _FAILED.search(text)
        if killed is not None:
            self._add("probe_killed", text, {"probe": killed[1].decode()})
        elif failed is not None:
            late = "yes" if _LATE.search(text) else "no"
            self._add("probe_failed", text, {"probe": failed[1].decode().lower(), "late": late})
        elif _OOM.search(text):
            self._add("oom", text, {})
        elif not self._described(text):
            return False
        return self.context.understood(self.dialect)

    def _add(self, kind: str, text: bytes, attributes: dict[str, float | str]) -> None:
        times, pod = _TIMES.search(text), _POD.search(text)
        attributes["times"] = float(times[1]) if times is not None else 1.0
        if pod is not None:
            attributes["pod"] = pod[1].decode("utf-8", "replace")
        self.context.events.add(kind, self.context.number, self.context.stamp(text), text.strip(), attributes)

    def _described(self, text: bytes) -> bool:
        found = _PROBE.match(text)
        if found is None:
            return False
        what, asked, timeout, period, misses = found.groups()
        if what == b"Liveness":
            place = Place(self.context.source, self.context.number)
            path = re.sub(r"^\S+ ", "", asked.decode("utf-8", "replace"))
            told = {
                "path": re.sub(r"^https?://[^/]*", "", path),
                "timeout": float(timeout) * 1e3,
                "period": float(period) * 1e3,
                "failure_threshold": float(misses),
            }
            self.settings += [
                Setting(
                    name=f"k8s.liveness.{name}",
                    value=value,
                    unit="ms" if name in ("timeout", "period") else "",
                    scope="the container",
                    place=place,
                )
                for name, value in told.items()
            ]
        return True
