"""A load in a run's header, in words and as options: no two loads may be told alike."""

import itertools
import shlex

import pytest

from tailrace.cli.arrivals_from import arrivals_from
from tailrace.store.run_arrival import arrival_of, arrival_options, arrival_words
from tailrace.store.run_file import Arrival
from tailrace.workload.arrivals import Arrivals
from tailrace.workload.process import parse_process
from tailrace.workload.shape_text import parse_shape


def sent(rate="", process="poisson", concurrency=None):
    kind, burstiness, clients = parse_process(process)
    shape = parse_shape(rate) if not rate.isdigit() else None
    return Arrivals(
        kind=kind,
        burstiness=burstiness,
        clients=clients,
        rate=None if shape else float(rate),
        shape=shape,
        concurrency=concurrency,
    )


LOADS = [
    sent("5"),
    sent("6"),
    sent("5", "constant"),
    sent("5", "gamma 0.3"),
    sent("5", "gamma 4"),
    sent("5", "50 clients zipf 1.1"),
    sent("5", "50 clients zipf 1.1, gamma 0.3"),
    sent("5", concurrency=8),
    arrivals_from(rate=None, arrival="200 clients every 20s starting over 1m", burstiness=None),
    sent("2..20 over 60s"),
    sent("2..20 over 30s"),
    Arrivals(concurrency=8),
    Arrivals(concurrency=9),
    Arrivals(concurrency=8, shape=parse_shape("1..8 over 60s")),
]


def test_no_two_loads_are_told_alike():
    for tell in (arrival_words, arrival_options):
        told = [tell(arrival_of(one, 0)) for one in LOADS]
        same = [pair for pair in itertools.combinations(told, 2) if pair[0] == pair[1]]
        assert same == []


@pytest.mark.parametrize("load", LOADS, ids=str)
def test_the_options_send_the_same_load(load):
    words = shlex.split(arrival_options(arrival_of(load, 0)))
    options = dict(zip(words[::2], words[1::2], strict=True))
    again = arrivals_from(
        rate=options.get("--rate"),
        arrival=options.get("--arrival"),
        concurrency=options.get("--concurrency"),
        burstiness=None,
        trace=False,
    )
    assert arrival_of(again, 0) == arrival_of(load, 0)


def test_words():
    assert arrival_words(arrival_of(sent("5", "gamma 0.3", 8), 0)) == "gamma 0.3 arrivals at 5/s, at most 8 in flight"
    assert arrival_words(arrival_of(LOADS[-1], 0)) == "closed loop of 8, coming in as '1..8 over 60s'"
    assert arrival_words(Arrival()) == "closed loop"
    assert arrival_words(Arrival(kind="unknown")) == "unknown arrivals"
    assert arrival_options(Arrival(kind="trace")) == "--trace FILE"
