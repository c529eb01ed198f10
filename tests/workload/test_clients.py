"""Clients: their sum has the rate and the burstiness that their composition makes."""

from __future__ import annotations

from collections import Counter
from itertools import islice, takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.model.errors import InputError
from tailrace.model.thresholds import S
from tailrace.workload.arrivals import ArrivalKind, Arrivals, senders
from tailrace.workload.clients import Clients, Spread, shares
from tailrace.workload.mix import parse_mix
from tailrace.workload.plan import Workload, generators, plan
from tailrace.workload.process import Process, parse_process
from tailrace.workload.shape_text import parse_shape


def clients_of(text: str) -> Clients:
    found = parse_process(text).clients
    assert found is not None
    return found


@given(
    st.sampled_from([ArrivalKind.POISSON, ArrivalKind.CONSTANT, ArrivalKind.GAMMA]),
    st.floats(0.01, 100),
    st.none()
    | st.builds(
        Clients,
        count=st.integers(1, 1000),
        start_over_ns=st.integers(0, 10**12),
        own_mix=st.none() | st.floats(0.01, 1000),
        every_ns=st.none() | st.integers(1, 10**12),
    )
    | st.builds(
        Clients,
        count=st.integers(1, 1000),
        spread=st.sampled_from([Spread.ZIPF, Spread.LOGNORMAL]),
        skew=st.floats(0.01, 5),
    ),
)
def test_what_is_rendered_is_parsed(kind: ArrivalKind, burstiness: float, clients: Clients | None):
    process = Process(kind, burstiness if kind is ArrivalKind.GAMMA else 1.0, clients)
    assert parse_process(str(process)) == process


@pytest.mark.parametrize(
    "text",
    ["", "uniform", "poisson 3", "gamma x", "gamma 0", "clients", "0 clients", "5 clients zipf", "5 clients pareto 2",
     "5 clients, 3 clients", "5 clients every soon", "5 clients own mix 0", "poisson, 5 clients"],
)  # fmt: skip
def test_what_is_no_process_is_refused_with_an_example(text: str):
    with pytest.raises(InputError) as caught:
        parse_process(text)
    assert caught.value.place == "--arrival"
    assert "Write" in caught.value.remedy


def test_shares_are_as_unequal_as_they_say():
    assert shares(clients_of("4 clients")).tolist() == [0.25] * 4
    zipf = shares(clients_of("100 clients zipf 1"))
    assert zipf[0] / zipf[9] == pytest.approx(10)
    lognormal = np.log(shares(clients_of("1000 clients lognormal 1.5")))
    assert lognormal.std() == pytest.approx(1.5, rel=0.01)
    assert (np.diff(lognormal) <= 0).all()


def times(process: str, rate: str, until_s: float, seed: int = 0) -> list[tuple[int, int]]:
    kind, burstiness, clients = parse_process(process)
    arrivals = Arrivals(kind=kind, burstiness=burstiness, clients=clients, shape=parse_shape(rate))
    return list(takewhile(lambda one: one[0] < until_s * S, senders(arrivals, np.random.default_rng(seed))))


@pytest.mark.parametrize("kind", ["poisson", "constant", "gamma 0.2"])
def test_the_sum_has_the_rate_from_the_first_second_on(kind: str):
    # An ordinary start would begin with too much (gamma 0.2: two requests a client) or with everybody at 0.
    counts = [
        np.histogram([at / S for at, _ in times(f"40 clients, {kind}", "40", 4, seed)], bins=[0, 1, 2, 4])[0]
        for seed in range(60)
    ]
    assert np.mean(counts, axis=0) == pytest.approx([40, 40, 80], rel=0.1)


def test_each_client_has_its_share():
    sent = Counter(who for _, who in times("5 clients zipf 1, poisson", "50", 400))
    total = sum(sent.values())
    assert [sent[who] / total for who in range(5)] == pytest.approx(
        shares(clients_of("5 clients zipf 1")).tolist(), rel=0.1
    )


def test_unequal_bursty_clients_make_bursts_that_one_process_of_the_same_kind_does_not():
    def fano(process: str) -> float:
        bins = np.arange(0, 2001, 10)
        counts = np.histogram([at / S for at, _ in times(process, "10", 2000, 3)], bins=bins)[0]
        return float(counts.var() / counts.mean())

    # Poisson counts have 1. The ten largest of these clients send two thirds, as in the traces behind ServeGen.
    assert fano("poisson") < 1.4
    assert fano("200 clients zipf 1.2, gamma 0.1") > 4
    assert 0.63 < shares(clients_of("200 clients zipf 1.2"))[:10].sum() < 0.93


def test_clients_come_in_over_time():
    counts = np.mean(
        [
            np.histogram(
                [at / S for at, _ in times("50 clients starting over 20s", "50", 40, seed)], bins=[0, 10, 20, 40]
            )[0]
            for seed in range(30)
        ],
        axis=0,
    )
    # Linearly more: 1/4 and 3/4 of the rate, then all of it.
    assert counts == pytest.approx([125, 375, 1000], rel=0.1)


def test_clients_follow_a_shape():
    counts = np.mean(
        [
            np.histogram(
                [at / S for at, _ in times("30 clients zipf 1, gamma 0.5", "4 for 10s, 40", 20, seed)], bins=[0, 10, 20]
            )[0]
            for seed in range(40)
        ],
        axis=0,
    )
    assert counts == pytest.approx([40, 400], rel=0.1)


@given(st.integers(0, 1000), st.integers(1, 400))
@settings(max_examples=20, deadline=None)
def test_one_seed_is_one_schedule_however_much_is_taken(seed: int, n: int):
    arrivals = Arrivals(kind=ArrivalKind.GAMMA, burstiness=0.3, rate=20.0, clients=clients_of("17 clients zipf 1"))
    whole = list(islice(senders(arrivals, np.random.default_rng(seed)), 400))
    assert list(islice(senders(arrivals, np.random.default_rng(seed)), n)) == whole[:n]
    assert [at for at, _ in whole] == sorted(at for at, _ in whole)


def planned(process: str, n: int = 4000):
    kind, burstiness, clients = parse_process(process)
    workload = Workload(
        arrivals=Arrivals(kind=kind, burstiness=burstiness, clients=clients, rate=50.0),
        mix=parse_mix("a=10/1:0.8,b=100/1:0.2"),
    )
    return list(islice(plan(workload, generators(7)), n))


def test_clients_have_mixes_of_their_own():
    apart = planned("20 clients own mix 0.05")
    alike = planned("20 clients own mix 1000")
    by_client: dict[int | None, Counter[str]] = {}
    for one in apart:
        by_client.setdefault(one.client, Counter())[one.name] += 1
    pure = sum(max(names.values()) / sum(names.values()) > 0.95 for names in by_client.values())
    assert len(by_client) == 20
    assert pure >= 15
    assert {one.client for one in planned("poisson", 50)} == {None}
    b = sum(one.name == "b" for one in alike) / len(alike)
    assert b == pytest.approx(0.2, abs=0.03)
    assert [one.number for one in apart] == list(range(4000))


def test_without_own_mixes_the_classes_do_not_depend_on_who_sends():
    one = [(x.name, x.prompt_tokens) for x in planned("poisson", 500)]
    many = [(x.name, x.prompt_tokens) for x in planned("20 clients zipf 1", 500)]
    assert one == many
