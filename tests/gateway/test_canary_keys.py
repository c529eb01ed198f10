"""The keys of canaries and shadows: what loads, what is refused and with which remedy, and what `check` says."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.app.check_config import judge_config
from tailrace.gateway.config import Config, config_from, to_plain
from tailrace.gateway.routing import observed
from tailrace.govern.canary_policy import Observation
from tailrace.model.errors import ConfigError
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import MS, S

BACKENDS = [{"name": name, "url": f"http://127.0.0.1:{port}"} for name, port in (("old", 8000), ("new", 8001))]


def config(**more: Any) -> Config:
    return config_from({"backends": BACKENDS, **more})


def test_the_defaults_are_those_that_the_documentation_states() -> None:
    canary = config(canary={"backends": ["new"]}).canary
    assert canary is not None
    policy = canary.policy()
    assert policy.steps == (0.10, 0.25, 0.50, 1.0)
    assert policy.hold_ns == 1800 * S
    assert policy.alpha == 0.01
    assert policy.min_requests == 500
    again = config_from(to_plain(config(canary={"backends": ["new"], "hold": "5m"})))
    assert again.canary is not None
    assert int(again.canary.hold) == 300 * S


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"canary": {"backends": []}}, "canary.backends"),
        ({"canary": {"backends": ["nobody"]}}, "canary.backends"),
        ({"canary": {"backends": ["old", "new"]}}, "backends"),
        ({"canary": {"backends": ["new"]}, "shadow": {"backends": ["new"]}}, "shadow.backends"),
        ({"canary": {"backends": ["new"], "steps": [0.5, 0.25]}}, "canary.steps"),
        ({"canary": {"backends": ["new"], "steps": []}}, "canary.steps"),
        ({"canary": {"backends": ["new"], "steps": [0.0, 1.0]}}, "canary.steps"),
        ({"canary": {"backends": ["new"], "steps": [1.0]}}, "canary.steps"),
        ({"canary": {"backends": ["new"], "alpha": 0.5}}, "canary.alpha"),
        ({"canary": {"backends": ["new"], "start": "later"}}, "canary.start"),
        ({"canary": {"backends": ["new"], "look": "1ms"}}, "canary.look"),
        ({"canary": {"backends": ["new"], "min_requests": 0}}, "canary.min_requests"),
        ({"canary": {"backends": ["new"], "requests_per_s": 0}}, "canary.requests_per_s"),
        ({"canary": {"backends": ["new"]}, "workers": 2}, "workers"),
        ({"shadow": {"backends": ["new"], "share": 2.0}}, "shadow.share"),
        ({"shadow": {"backends": ["new"], "at_once": 0}}, "shadow.at_once"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place_and_a_remedy(keys: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**keys)
    assert caught.value.place.endswith(place)
    assert caught.value.remedy


def test_a_shadow_may_have_several_workers() -> None:
    assert config(shadow={"backends": ["new"]}, workers=2).shadow is not None


def _codes(**canary: Any) -> dict[str, str]:
    found = judge_config(config(canary={"backends": ["new"], **canary}), "file.yaml")
    return {finding.code: finding.statement for finding in found if "CANARY" in finding.code}


def test_check_says_that_a_canary_has_no_traffic_to_conclude_on() -> None:
    said = _codes(requests_per_s=0.5)
    assert "90 canary requests in a hold" in said["CONFIG_CANARY_WITHOUT_TRAFFIC"]
    assert "CONFIG_CANARY_TRAFFIC_UNKNOWN" in _codes()
    assert _codes(requests_per_s=20.0) == {}
    assert "CONFIG_CANARY_WITHOUT_TRAFFIC" in _codes(requests_per_s=20.0, hold="10s")


def _record(**more: Any) -> RequestRecord:
    given: dict[str, Any] = {
        "request_id": "r", "start_unix_ns": 1, "backend": "new", "route": "canary", "connection_reused": True,
        "outcome": OutcomeKind.COMPLETED, "e2e_ns": 900 * MS, "e2e_last_token_ns": 800 * MS, "ttft_ns": 300 * MS,
        "tpot_ns": 20 * MS, "queue_gateway_ns": 100 * MS, "prompt_tokens": 40, "output_tokens": 9, "prompt_bytes": 160,
    }  # fmt: skip
    return RequestRecord(**{**given, **more})


def test_what_a_record_says_of_its_route() -> None:
    plain = observed(_record())
    assert plain == Observation(True, 40, 9, 200 * MS, 20 * MS, 700 * MS, failed=False, group=0, prompt_bytes=160)
    failed = observed(_record(outcome=OutcomeKind.FAILED, reason=Reason.STREAM_CUT))
    assert failed is not None
    assert (failed.failed, failed.ttft_ns, failed.e2e_ns) == (True, 0, 0)
    late = observed(_record(outcome=OutcomeKind.TIMED_OUT, reason=Reason.IDLE_TIMEOUT))
    assert late is not None
    assert late.failed
    one, two = (observed(_record(session_id=name)) for name in ("a", "b"))
    assert one is not None
    assert two is not None
    assert 0 != one.group != two.group != 0


def test_what_says_nothing_of_a_route_is_not_heard() -> None:
    assert observed(_record(outcome=OutcomeKind.TIMED_OUT, reason=Reason.QUEUE_TIMEOUT)) is None
    refused = {"outcome": OutcomeKind.REJECTED, "reason": Reason.QUEUE_FULL, "connection_reused": None}
    assert observed(_record(**refused)) is None


def test_who_gave_up_counts_with_the_time_that_they_had_waited() -> None:
    gone: dict[str, Any] = {"outcome": OutcomeKind.CANCELLED, "reason": Reason.CLIENT_DISCONNECT, "ttft_ns": None}
    waited = observed(_record(**gone))
    assert waited is not None
    assert (waited.ttft_ns, waited.e2e_ns) == (800 * MS, 0)
    quick = observed(_record(**gone, e2e_ns=200 * MS))
    assert quick is not None
    assert quick.ttft_ns == 0


def test_an_engine_that_refuses_what_the_other_takes_has_failed() -> None:
    refused = observed(_record(outcome=OutcomeKind.REJECTED, reason=Reason.UNKNOWN_MODEL))
    assert refused is not None
    assert refused.failed
