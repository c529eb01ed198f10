"""Triton: `generate_stream` without an end marker, `nv_` metrics. Facts are of 2.51.

For streams its own durations end when `execute()` returns, long before the last token: only our clock counts, so the
adapter takes no timings from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final
from urllib.parse import quote

import msgspec

from tailrace.engines.base import Detection, EngineAdapter
from tailrace.engines.batches import BatchCounts
from tailrace.engines.errors import Ending
from tailrace.engines.facts import Fact
from tailrace.engines.metric_names.table import MetricNames
from tailrace.engines.metric_names.triton import TRITON_METRICS
from tailrace.engines.said import count
from tailrace.engines.signals import SignalTable, names
from tailrace.engines.triton_facts import read_model_config
from tailrace.measure.dialect import UNREADABLE, EngineFault
from tailrace.measure.openai import decode_leniently
from tailrace.model.outcome import Reason

PREFIX: Final = "nv_"

STATISTICS: Final = "/v2/models/stats"
_MOST_MODELS: Final = 16


class Triton(EngineAdapter):
    """Triton's HTTP server."""

    name: ClassVar[str] = "triton"
    title: ClassVar[str] = "Triton"
    versions: ClassVar[str] = "2.51.0"
    metrics_path: ClassVar[str | None] = "/metrics"
    metric_prefixes: ClassVar[tuple[str, ...]] = (PREFIX,)
    metric_names: ClassVar[MetricNames | None] = TRITON_METRICS
    lower_priority_first: ClassVar[bool | None] = True
    priority_levels: ClassVar[bool] = True
    health_path: ClassVar[str] = "/v2/health/ready"
    id_field: ClassVar[str | None] = "id"
    version_path: ClassVar[str | None] = "/v2"
    info_paths: ClassVar[tuple[str, ...]] = (STATISTICS,)
    statistics_path: ClassVar[str | None] = STATISTICS
    signals: ClassVar[SignalTable] = {
        "waiting": names("nv_inference_pending_request_count"),
        "queue_seconds_total": names("nv_inference_queue_duration_us", scale=1e-6),
    }

    def detect(self, headers: Mapping[str, str], metric_names: Collection[str]) -> Detection | None:
        """By its metric names."""
        _ = headers
        if any(name.startswith("nv_inference_") for name in metric_names):
            return Detection(self.name, "", "metric names nv_inference_*", 3)
        return None

    def recognise(self, path: str, body: bytes) -> Detection | None:
        """By the name in the answer of `/v2`: its metrics are on another port, where nobody looks unless told to."""
        version = self.version(body) if path == self.version_path else ""
        return Detection(self.name, version, "/v2: name triton", 3) if version else None

    def version(self, body: bytes) -> str:
        """The version in the answer of `/v2`, which other servers of the protocol give too."""
        said = decode_leniently(body)
        return super().version(body) if isinstance(said, dict) and said.get("name") == "triton" else ""

    def further_info(self, path: str, body: bytes) -> tuple[str, ...]:
        """The configuration of each model that the statistics name."""
        if path != STATISTICS:
            return ()
        models = list(self.read_statistics(body))[:_MOST_MODELS]
        return tuple(f"/v2/models/{quote(model, safe='')}/config" for model in models)

    def read_info(self, path: str, body: bytes) -> dict[str, Fact]:
        """The server's version, and the configuration of a model."""
        if not path.endswith("/config"):
            return super().read_info(path, body)
        said = decode_leniently(body)
        return read_model_config(path, said) if isinstance(said, dict) else {}

    def read_statistics(self, body: bytes) -> dict[str, BatchCounts]:
        """Executions by batch size, and the time in the queue. For streams an execution is a call of `execute()`."""
        said = decode_leniently(body)
        rows = said.get("model_stats") if isinstance(said, dict) else None
        out: dict[str, BatchCounts] = {}
        for row in rows if isinstance(rows, list) else []:
            if not isinstance(row, dict) or not isinstance(row.get("name"), str):
                continue
            # A failed load leaves a model with a name and no statistics.
            before = out.get(row["name"])
            counts = _batch_counts(row)
            out[row["name"]] = counts if before is None else _joined(before, counts)
        return out

    def takes_id(self, path: str) -> bool:
        """Its generating routes, which echo it. `/infer` may carry tensors behind its JSON: it is left as it is."""
        return "/v2/" in path and path.partition("?")[0].endswith(("/generate", "/generate_stream"))

    def with_deadline(self, path: str, body: bytes, left_ns: int) -> bytes:
        """`parameters.timeout` of `/infer`, in microseconds (its schedule policy extension); a shorter one stays.

        The dynamic batcher then refuses a request that waited longer, where the model's queue policy allows the
        override. A body with binary tensors behind its JSON stays as it is, and so do the generating routes, of which
        the extension says nothing.
        """
        if not path.endswith("/infer"):
            return body
        try:
            whole = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            said = msgspec.json.decode(whole["parameters"]) if "parameters" in whole else {}
        except UNREADABLE:
            return body
        if not isinstance(said, dict):
            return body
        timeout, own = max(1, left_ns // 1_000), said.get("timeout")
        if isinstance(own, int) and not isinstance(own, bool) and 0 < own <= timeout:
            return body
        return msgspec.json.encode({**whole, "parameters": {**said, "timeout": timeout}})

    def fault(self, fault: EngineFault, *, status: int | None = None, tokens_seen: bool = False) -> Ending:
        """An error object under status 200 comes from the model itself, which has run: `decode`."""
        ending = super().fault(fault, status=status, tokens_seen=tokens_seen)
        if status is None and ending.reason is Reason.ENGINE_ERROR:
            return msgspec.structs.replace(ending, stage="decode", retry_other=False)
        return ending

    def priority(self, rank: int) -> int:
        """1 is the highest; 0 would mean the default."""
        return rank + 1

    def priority_fields(self, path: str, rank: int) -> dict[str, Any]:
        """A reserved member of the request's `parameters`, on the routes whose body may be changed."""
        return {"parameters": {"priority": self.priority(rank)}} if self.takes_id(path) else {}


def _batch_counts(row: Mapping[str, Any]) -> BatchCounts:
    sizes: dict[int, int] = {}
    batches = row.get("batch_stats")
    for batch in batches if isinstance(batches, list) else []:
        size = count(batch, "batch_size") if isinstance(batch, dict) else None
        infer = batch.get("compute_infer") if size else None
        ran = count(infer, "count") if isinstance(infer, dict) else None
        if size and ran is not None:
            sizes[size] = sizes.get(size, 0) + ran
    stats = row.get("inference_stats")
    queue = stats.get("queue") if isinstance(stats, dict) else None
    queue = queue if isinstance(queue, dict) else {}
    return BatchCounts(sizes, count(queue, "ns") or 0, count(queue, "count") or 0)


def _joined(one: BatchCounts, other: BatchCounts) -> BatchCounts:
    """Versions of one model."""
    sizes = {
        size: one.executions.get(size, 0) + other.executions.get(size, 0) for size in one.executions | other.executions
    }
    return BatchCounts(sizes, one.queue_ns + other.queue_ns, one.queue_count + other.queue_count)
