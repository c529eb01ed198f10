"""`tailrace check` on engines that really run: their own pages, their own models."""

from __future__ import annotations

import pytest

from tailrace.app.check import CheckRequest, check
from tailrace.model.check import Weight
from tests.real.conftest import SLOTS

pytestmark = pytest.mark.tier("ci")


def values(report):
    return {one.key: one.value for one in report.engines[0].settings}


@pytest.mark.needs("llamacpp")
@pytest.mark.long("a real engine loads its model", timeout=120)
def test_llama_cpp(engine):
    report = check(CheckRequest(sources=[engine]))
    assert report.engines[0].engine == "llamacpp"
    said = values(report)
    assert said["slots"] == SLOTS
    assert said["slot_ctx"] >= 512
    codes = {one.code for one in report.findings}
    assert {"SLOT_CONTEXT", "QUEUE_UNBOUNDED"} <= codes
    bound = next(one for one in report.findings if one.code == "QUEUE_UNBOUNDED")
    assert f"running: {SLOTS}" in bound.advice


@pytest.mark.needs("triton", "grpc")
@pytest.mark.long("a real server loads its models", timeout=120)
def test_triton(triton):
    report = check(CheckRequest(sources=[triton.url]))
    assert report.engines[0].engine == "triton"
    assert report.engines[0].version.startswith("2.")
    assert report.engines[0].version_source == "/v2: version"
    by_subject = {(one.code, one.subject): one for one in report.findings}
    assert ("TRAP_STREAM_DURATIONS", "count: model_transaction_policy") in by_subject
    bound = by_subject["QUEUE_UNBOUNDED", "double: max_queue_size"]
    assert bound.evidence[0].source == "/v2/models/double/config"
    # Plain dynamic batching: none of the stalls that queue policies bring.
    assert not [one for one in report.findings if one.code == "QUEUE_POLICY_STALLS"]
    assert not [one for one in report.findings if one.weight is Weight.ERROR]
