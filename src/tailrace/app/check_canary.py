"""A canary that cannot conclude: too little traffic for its steps, said before it runs for a week."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.gateway.config import Config
from tailrace.gateway.config_values import human
from tailrace.govern.canary_power import foresee, smallest_traffic
from tailrace.model.check import CheckFinding, Weight
from tailrace.model.finding import Evidence
from tailrace.model.thresholds import S

_TOO_COARSE = 0.5
"""A hold that cannot see a slow-down of half is no test."""


def judge_canary(config: Config, name: str) -> Iterator[CheckFinding]:
    """What the declared traffic says of the canary's steps."""
    canary = config.canary
    if canary is None:
        return
    verify = f"tailrace check {name}"
    if canary.requests_per_s is None:
        yield CheckFinding(
            code="CONFIG_CANARY_TRAFFIC_UNKNOWN",
            weight=Weight.ADVICE,
            about=name,
            subject="canary.requests_per_s",
            statement="The canary does not say what traffic to expect: whether its steps conclude is not known.",
            evidence=[Evidence("requests_per_s is not given", name, "canary")],
            advice="canary: {requests_per_s: 20}",
            effect="`check` and `GET /canary` say what is found in what time before it starts.",
            price="None.",
            verify=verify,
        )
        return
    policy = canary.policy()
    first = foresee(policy, canary.requests_per_s, policy.steps[0], spread=None, deff=None)
    smallest, requests = first["smallest_slowdown_in_hold"], first["requests_in_hold"]
    if smallest is not None and smallest <= _TOO_COARSE and requests >= policy.min_requests:
        return
    needed = smallest_traffic(policy, policy.steps[0], _TOO_COARSE)
    found = "no slow-down below 10 x" if smallest is None else f"only slow-downs from {smallest:.0%}"
    wait = first["min_requests_s"]
    yield CheckFinding(
        code="CONFIG_CANARY_WITHOUT_TRAFFIC",
        weight=Weight.WARNING,
        about=name,
        subject="canary.hold",
        statement=f"The canary has no traffic to conclude on: {canary.requests_per_s:g} requests/s at "
        f"{policy.steps[0]:.0%} are {requests:.0f} canary requests in a hold of {human(canary.hold)}, which finds "
        f"{found}; its {policy.min_requests} requests take {wait / 60:.0f} min.",
        evidence=[
            Evidence(f"{requests:.0f} requests in the first hold", f"{name}: canary", "hold", requests),
            Evidence(first["text"], "the tests' own power", "canary"),
        ],
        advice=f"A larger first step or a longer hold: {needed:.0f} requests/s would find a slow-down of "
        f"{_TOO_COARSE:.0%} in this one. `canary: {{steps: [0.5, 1.0], hold: {human(4 * 3600 * S)}}}`, for example.",
        effect="A widening means that something was tested.",
        price="More users on the canary while it is tested, or more time.",
        verify=verify,
    )
