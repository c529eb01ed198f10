"""What the columns of a time series are called: which is the axis, which quantity a column holds, of whom.

Names are those of the vocabulary where it has one (`running`, `waiting`, `kv_usage`, `gpu_util`), else the heading's
own words without the unit: `inflight_client`, `inflight_upstream`, `health_rtt`, `loop_lag`, `chunk_service`. Counters
keep their `_total`. What a column is of (`gap_ms_stream_a`, `running_engine_0`) becomes a label.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tailrace.diagnose.observed.vocabulary import QUANTITIES, Quantity, quantity_named
from tailrace.diagnose.readers.heading import heading as wording
from tailrace.diagnose.readers.headings import heading

__all__ = ["Axis", "Column", "axis_of", "column_of_series", "is_label", "is_weak_axis"]


class Axis(NamedTuple):
    """What a series runs over."""

    name: str
    """As `Series.axis`."""
    unit: str
    """Of the column: `s`, `ms`, `h`, …; empty for counts."""


class Column(NamedTuple):
    """One column of values."""

    name: str
    unit: str
    """Of the cells, empty where none is written."""
    wanted: str
    """In which it is kept: `ms`, `share`, or as written."""
    labels: dict[str, str]
    known: bool
    """The name is one that rules ask for."""


_AXES: Final = {
    "time": "time t ts timestamp elapsed elapsed_time seconds sec s clock datetime date time_since_start t_rel second "
    "ms minute minutes min offset",
    "session_age": "session_age age stream_age connection_age session_time",
    "uptime": "uptime process_uptime server_uptime hours_up up",
    "iteration": "iteration iter step iterations engine_step step_id iteration_index idx index sample n",
    "output_position": "output_position position output_token generated tokens_generated output_tokens "
    "generated_tokens token_index token_position output_len output_length seq_len sequence_length context_len "
    "context_length decoded decoded_tokens token pos",
    "turn": "turn turn_id turn_index utterance",
}
_SINCE: Final = re.compile(
    r"(?:t|time|s|sec|secs|seconds|elapsed)_(?:since|after|from|into|rel|relative|in)"
    r"(?!_(?:the_)?(?:queue|prefill|decode|waiting|gc|lock|send|sent|request|previous|last|prior))(?:_[a-z]+)*|"
    r"(?:rel|relative|wall|sample)_time|at_(?:s|sec|seconds)"
)
"""`seconds_after_disconnect`, `t_since_start`; `time_in_queue` and `time_since_last_token` are durations."""
_FROM_START: Final = frozenset({"after", "run_for", "running_for", "since_start", "into_the_run", "under_load"})
"""Words that are a time where a unit of time stands behind them."""
_AXIS_BY_WORD: Final = {word: axis for axis, words in reversed(_AXES.items()) for word in words.split()}
_WEAK: Final = frozenset(
    {
        *("n", "sample", "index", "idx", "output_tokens", "output_len", "output_length"),
        *("seq_len", "sequence_length", "context_len", "context_length"),
    }
)
_NAMES: Final = {
    "inflight_client": "inflight_client client_inflight in_flight_client client_in_flight clients_in_flight "
    "open_client_requests client_requests client_connections active_clients downstream_active "
    "client_connections_open open_client_connections connections_open open_connections clients_connected",
    "inflight_upstream": "inflight_upstream upstream_inflight in_flight_upstream upstream_in_flight "
    "proxy_inflight inflight_proxy upstream_active upstream_connections upstream_requests pool_in_use",
    "running": "engine_running running num_running running_reqs running_requests num_requests_running batch_size batch "
    "num_running_reqs running_seqs executing executing_requests active_instances busy_instances active "
    "active_requests active_reqs num_active active_seqs in_batch",
    "backlog": "backlog audio_backlog buffered buffered_audio buffer_s behind unprocessed",
    "waiting": "engine_waiting waiting num_waiting waiting_reqs waiting_requests pending queue_depth queued "
    "num_requests_waiting queue_len queue_length num_queue_reqs queue_size pending_requests",
    "kv_usage": "kv_usage kv_cache_usage gpu_cache_usage kv_cache_usage_perc token_usage kv kv_used cache_usage",
    "gpu_util": "gpu_util gpu_utilization gpu_utilisation utilization_gpu gpu gpu_busy sm_util",
    "iterations_total": "iterations_total iterations steps_total iteration_total engine_iterations_total "
    "scheduler_iterations_total engine_steps_total tokens_generated_total generation_tokens_total",
    "restarts_total": "restarts_total restarts restart_count pod_restarts container_restarts "
    "kube_pod_container_status_restarts_total",
    "engine_errors_total": "engine_errors_total errors_total error_count crashes_total oom_total engine_crashes_total "
    "oom_kills_total crashes",
    "preemptions_total": "preemptions_total num_preemptions_total preemptions num_preemptions retractions_total",
    "ready_endpoints": "ready_endpoints endpoints_ready ready_pods pods_ready ready_replicas replicas_ready ready "
    "available_replicas replicas_available healthy_endpoints",
    "desired_replicas": "desired_replicas replicas_desired desired_pods pods_desired target_replicas wanted_replicas "
    "replicas_target spec_replicas",
    "health_rtt": "health_rtt health_rtt_max health_latency health_check_rtt healthz_rtt probe_rtt "
    "probe_latency health_response_time health health_max",
    "metrics_rtt": "metrics_rtt metrics_latency metrics_rtt_max scrape_duration",
    "loop_lag": "loop_lag event_loop_lag eventloop_lag loop_delay event_loop_delay loop_lag_max timer_drift",
    "wall": "wall wall_time duration step_time iteration_time step_wall elapsed_wall latency sample_wall step",
    "typical_wall": "typical_wall typical baseline_wall median_wall expected_wall normal_wall typical_time",
    "cpu_step": "cpu_per_step cpu_ms_per_step cpu_step step_cpu cpu_time_per_step host_ms_per_step cpu_time",
    "itl": "itl inter_token_latency tpot decode_gap mean_itl",
    "chunk_gap": "gap chunk_gap stall pause",
    "chunk_service": "chunk_service chunk_service_time service service_time chunk_time feed feed_time chunk_compute "
    "chunk_processing chunk_process processing per_chunk chunk_ms_compute",
    "pause": "gc_pause pause_time gc_time gc_duration collection_time",
    "images_in_preprocess": "images_in_preprocess preprocess_items images_pending preprocessing",
    "ttft": "ttft time_to_first_token",
    "sm_clock": "sm_clock sm_clock_mhz clocks_sm clocks_sm_mhz gpu_clock gpu_clock_mhz sclk sclk_mhz sm_mhz",
    "temperature": "temperature temp temp_c temperature_c gpu_temp gpu_temp_c temperature_gpu gpu_temperature",
    "power": "power power_w power_draw power_draw_w gpu_power gpu_power_w",
    "power_limit": "power_limit power_limit_w power_cap power_cap_w",
    "nr_throttled": "nr_throttled",
    "nr_periods": "nr_periods",
}
_BY_WORD: Final = {word: name for name, words in reversed(_NAMES.items()) for word in words.split()}
_MS: Final = frozenset(
    {
        *("health_rtt", "metrics_rtt", "loop_lag", "wall", "typical_wall", "cpu_step"),
        *("itl", "chunk_gap", "chunk_service", "ttft", "pause", "queue"),
    }
)
_SHARES: Final = frozenset({"kv_usage", "gpu_util", "prefix_hit"})
_LABELS: Final = {
    **dict.fromkeys(("stream", "streams", "stream_id", "request", "req", "rid"), "stream"),
    **dict.fromkeys(
        ("replica", "worker", "instance", "pod", "node", "backend", "host", "server", "upstream"), "replica"
    ),
    "engine": "engine",
    "dp_rank": "engine",
    "rank": "rank",
    "gpu": "gpu",
    "session_id": "session",
    "arm": "arm",
}
_OF: Final = re.compile(
    r"(?P<base>.+?)_(?P<kind>stream|replica|worker|engine|rank|gpu|instance|pod|node|backend|request|req|server)_?"
    r"(?!s(?:_|$))(?P<value>\d+|[a-z]|[a-z0-9]*\d[a-z0-9]*)(?P<rest>_.+)?"
)
_BEFORE: Final = re.compile(
    r"(?P<kind>stream|replica|worker|engine|rank|gpu|instance|pod|node|backend|server)_?(?!s_)(?P<value>\d+|[a-z])_(?P<base>.+)"
)
_EACH: Final = re.compile(r"(?P<base>.+)_(?P<value>(?:r|w|dp)?\d{1,3}|[a-h])")
"""`running_0`, `waiting_r1`: a gauge of which every replica has its own."""
_HAS_EACH: Final = frozenset({"running", "waiting", "kv_usage", "inflight_upstream"})
_VENDOR: Final = re.compile(r"^(?:vllm|sglang|tgi|trtllm|triton|lmdeploy|llama|server)_")
_STAT: Final = re.compile(r"(?P<base>.+?)_(?P<stat>mean|avg|median|p\d+(?:_\d)?|max|min)$")
_STATS: Final = {"avg": "mean", "median": "p50"}


def axis_of(text: str) -> Axis | None:
    """What a column with this heading would be as an axis; `None` where it is none."""
    found = heading(text)
    axis = _AXIS_BY_WORD.get(found.name)
    if axis is None and _SINCE.fullmatch(found.name) is not None:
        return Axis("time", found.unit or "s")
    if axis is None and found.name in _FROM_START and found.unit in {"s", "min", "h"}:
        axis = "time"
    if axis is None:
        return None
    unit = found.unit
    if not unit and axis in ("time", "session_age", "uptime"):
        unit = {"seconds": "s", "sec": "s", "s": "s", "second": "s", "ms": "ms", "minute": "min", "minutes": "min",
                "min": "min", "hours_up": "h"}.get(found.name, "")  # fmt: skip
        if not unit and text.strip().lower().endswith(("_h", "(h)", "[h]", "hours")):
            unit = "h"
    return Axis(axis, unit)


def is_weak_axis(text: str) -> bool:
    """Whether a heading is as often a condition of an arm (`n`, `output_len`) as an axis."""
    return heading(text).name in _WEAK


def is_label(text: str) -> str:
    """Under which label the cells of a column with this heading say what a row is of; empty where they do not."""
    return _LABELS.get(heading(text).name, "")


def column_of_series(text: str) -> Column:
    """What a column holds."""
    found = heading(text)
    labels: dict[str, str] = {}
    name, unit = found.name, found.unit
    if name not in _BY_WORD and (plain := _VENDOR.sub("", name)) in _BY_WORD:
        name = plain
    if name not in _BY_WORD:
        name, unit = _of_one(name, unit, labels)
    if name not in _BY_WORD:
        stat = _STAT.fullmatch(name)
        if stat is not None and (stat["base"] in _BY_WORD or quantity_named(stat["base"]) is not None):
            labels["stat"] = _STATS.get(stat["stat"], stat["stat"].replace("_", "."))
            inner = heading(stat["base"])
            name, unit = inner.name, unit or inner.unit
    ours = _BY_WORD.get(name)
    if ours is None and name.removesuffix("_total") != name:
        return Column(name, unit, "", labels, known=False)
    quantity = quantity_named(name.replace("_", " ")) if ours is None else QUANTITIES.get(ours)
    if ours is None and quantity is not None:
        ours = quantity.name
    if ours is None and not labels:
        # As a heading of a table: `generation tok/s`, `errors_pct`, `TTFT p99 [ms]`.
        rich = wording(text)
        if rich.quantity and not rich.change and not rich.qualifier:
            labels = {"stat": rich.stat} if rich.stat else labels
            return _column(rich.quantity, name, QUANTITIES[rich.quantity], rich.unit or unit, labels)
    return _column(ours, name, quantity, unit, labels)


def _of_one(name: str, unit: str, labels: dict[str, str]) -> tuple[str, str]:
    """(name, unit) without what the column is of, which becomes a label."""
    each = _EACH.fullmatch(name)
    if each is not None and _BY_WORD.get(each["base"]) in _HAS_EACH:
        labels["replica"] = each["value"]
        return each["base"], unit
    of = _OF.fullmatch(name) or _BEFORE.fullmatch(name)
    if of is None:
        return name, unit
    labels[_LABELS[of["kind"]]] = of["value"]
    inner = heading(of["base"] + (of.groupdict().get("rest") or ""))
    return inner.name, unit or inner.unit


def _column(ours: str | None, name: str, quantity: Quantity | None, unit: str, labels: dict[str, str]) -> Column:
    known = ours is not None
    ours = ours or name
    wanted = quantity.unit if quantity is not None and quantity.unit in {"ms", "share"} else ""
    if ours in _MS or (not wanted and unit in {"s", "ms", "us", "ns", "min"}):
        wanted = "ms"
    elif ours in _SHARES:
        wanted = "share"
    return Column(ours, unit, wanted, labels, known=known)
