"""The simulated engine is never taken for the engine whose form it speaks."""

from __future__ import annotations

from tailrace.engines.registry import ADAPTERS, adapter, detect
from tailrace.engines.vllm import Vllm

NAMES = ["vllm:num_requests_running", "vllm:kv_cache_usage_perc"]


def test_its_server_header_beats_its_metric_names():
    found = detect({"Server": "tailrace-simulated-engine/0.1"}, NAMES)
    assert (found.name, found.version) == ("simulated", "0.1")


def test_vllm_stays_vllm():
    assert detect({"Server": "uvicorn"}, NAMES).name == "vllm"


def test_it_reads_what_vllm_reads():
    assert isinstance(adapter("simulated"), Vllm)
    assert ADAPTERS["simulated"].signals == ADAPTERS["vllm"].signals
