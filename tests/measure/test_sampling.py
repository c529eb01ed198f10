from __future__ import annotations

import pytest

from tailrace.measure.sampling import keep, share_of
from tailrace.model.outcome import OutcomeKind as O


@pytest.mark.parametrize("outcome", [kind for kind in O if kind is not O.COMPLETED])
def test_whatever_did_not_complete_is_always_kept(outcome: O) -> None:
    assert keep("any", outcome, [], rate=0.0) == (outcome.value, 1.0)


@pytest.mark.parametrize(
    ("slow", "reason"), [(["ttft"], "slow"), (["tpot"], "slow"), (["gap"], "stall"), (["ttft", "stall"], "stall")]
)
def test_slow_ones_are_always_kept(slow: list[str], reason: str) -> None:
    assert keep("any", O.COMPLETED, slow, rate=0.0) == (reason, 1.0)


@pytest.mark.parametrize("rate", [0.01, 0.2])
@pytest.mark.parametrize("form", ["{}", "req-{:08d}", "chatcmpl-{:x}"])
def test_the_sample_is_unbiased_for_ids_of_any_form(rate: float, form: str) -> None:
    n = 20_000
    verdicts = [keep(form.format(index), O.COMPLETED, [], rate=rate) for index in range(n)]
    kept = [weight for reason, weight in verdicts if reason]
    spread = (n * rate * (1 - rate)) ** 0.5
    assert abs(len(kept) - n * rate) < 4.5 * spread
    assert set(kept) == {1 / rate}
    # The weights estimate how many there were.
    assert sum(weight for _, weight in verdicts) == pytest.approx(n, abs=4.5 * spread / rate)


def test_the_decision_depends_on_the_id_alone_and_grows_with_the_rate() -> None:
    ids = [f"r{index}" for index in range(3000)]
    low = {each for each in ids if keep(each, O.COMPLETED, [], rate=0.01)[0]}
    high = {each for each in ids if keep(each, O.COMPLETED, [], rate=0.1)[0]}
    assert low < high
    assert share_of("r1") == share_of("r1") != share_of("r2")


def test_rate_one_keeps_all_and_zero_none() -> None:
    assert keep("x", O.COMPLETED, [], rate=1.0) == ("sampled", 1.0)
    assert keep("x", O.COMPLETED, [], rate=0.0) == ("", 0.0)
