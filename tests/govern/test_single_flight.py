from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.govern.single_flight import Flight, Flights


class Reader:
    """A follower that takes everything as soon as it may, or nothing while it is slow."""

    def __init__(self, flight: Flight[str]) -> None:
        self.flight = flight
        self.position = 0
        self.slow = False
        self.got: list[bytes] = []
        self.told: list[str] = []

    def _take(self) -> None:
        while not self.slow and (pieces := self.flight.take(self, 10)):
            self.got += pieces

    def flight_moved(self) -> None:
        self._take()

    def flight_landed(self) -> None:
        self.told.append("landed")
        self._take()

    def flight_failed(self) -> None:
        self.told.append("failed")

    def flight_lost(self) -> None:
        self.told.append("lost")


def test_a_follower_gets_what_came_and_what_comes():
    flights: Flights[str] = Flights()
    flight = flights.lead(b"k", 1000)
    assert flights.find(b"k") is flight
    flight.begin("head")
    flight.release()
    flight.push(b"one")
    reader = Reader(flight)
    assert flight.join(reader)
    reader.flight_moved()
    flight.push(b"two")
    flight.land()
    assert reader.got == [b"one", b"two"]
    assert reader.told == ["landed"]
    assert flights.find(b"k") is None


def test_nothing_goes_before_the_head_is_released():
    flight = Flights[str]().lead(b"k", 1000)
    reader = Reader(flight)
    flight.join(reader)
    flight.begin("head")
    flight.push(b"one")
    assert reader.got == []
    flight.release()
    assert reader.got == [b"one"]


def test_a_second_leader_stays_by_itself():
    flights: Flights[str] = Flights()
    first, second = flights.lead(b"k", 10), flights.lead(b"k", 10)
    assert flights.find(b"k") is first
    second.land()
    assert flights.find(b"k") is first


def test_followers_of_a_failure_are_let_go_once_and_may_lead_themselves():
    flights: Flights[str] = Flights()
    flight = flights.lead(b"k", 1000)
    found: list[object] = []

    class Next(Reader):
        def flight_failed(self) -> None:
            super().flight_failed()
            found.append(flights.find(b"k"))
            flights.lead(b"k", 10) if flights.find(b"k") is None else None

    readers = [Next(flight) for _ in range(3)]
    for reader in readers:
        flight.join(reader)
    flight.fail()
    flight.fail()
    assert [reader.told for reader in readers] == [["failed"]] * 3
    assert found[0] is None
    assert found[1] is found[2] is not None
    assert not flight.join(readers[0])


def test_its_leader_hears_when_the_last_follower_has_gone_and_only_then():
    class Leader:
        heard = 0

        def flight_unwanted(self) -> None:
            self.heard += 1

    flight = Flights[str]().lead(b"k", 1000)
    flight.leader = leader = Leader()
    one, two = Reader(flight), Reader(flight)
    assert not flight.wanted
    flight.join(one)
    flight.join(two)
    flight.leave(one)
    flight.leave(one)
    assert flight.wanted
    assert leader.heard == 0
    flight.leave(two)
    assert not flight.wanted
    assert leader.heard == 1


def test_the_first_token_is_marked_behind_its_piece():
    flight = Flights[str]().lead(b"k", 1000)
    flight.release()
    flight.push(b"role")
    flight.push(b"token")
    flight.mark_token()
    flight.push(b"more")
    flight.mark_token()
    assert flight.token_at == 2


def test_an_answer_too_large_is_forgotten_and_only_who_lags_is_lost():
    flights: Flights[str] = Flights()
    flight = flights.lead(b"k", 30)
    quick, slow = Reader(flight), Reader(flight)
    flight.join(quick)
    flight.join(slow)
    slow.slow = True
    flight.release()
    for _ in range(3):
        flight.push(b"0123456789")
    assert flight.whole
    flight.push(b"0123456789")
    assert not flight.whole
    assert (quick.told, slow.told) == ([], ["lost"])
    assert flight.held == 0
    assert flights.find(b"k") is None
    assert not flight.join(Reader(flight))
    flight.push(b"x")
    flight.land()
    assert quick.got == [b"0123456789"] * 4 + [b"x"]
    assert quick.told == ["landed"]


def test_before_anything_has_left_all_followers_of_a_large_answer_do_better_alone():
    flight = Flights[str]().lead(b"k", 10)
    reader = Reader(flight)
    flight.join(reader)
    flight.push(b"0123456789ab")
    assert reader.told == ["lost"]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.binary(min_size=1, max_size=12)),
            st.tuples(st.just("join"), st.just(b"")),
            st.tuples(st.just("slow"), st.integers(0, 3)),
            st.tuples(st.just("quick"), st.integers(0, 3)),
        ),
        max_size=40,
    )
)
def test_whoever_is_told_that_it_landed_has_every_byte_in_order(steps):
    flight = Flights[str]().lead(b"k", 40)
    flight.release()
    sent: list[bytes] = []
    readers: list[Reader] = []
    for kind, value in steps:
        if kind == "push":
            sent.append(value)
            flight.push(value)
        elif kind == "join":
            reader = Reader(flight)
            if flight.join(reader):
                readers.append(reader)
                reader.flight_moved()
        elif value < len(readers):
            readers[value].slow = kind == "slow"
            if kind == "quick" and readers[value] in flight.followers:
                readers[value].flight_moved()
        assert flight.held <= 40 + 12
    flight.land()
    for reader in readers:
        reader.slow = False
        reader._take() if reader.told == ["landed"] else None
        if reader.told == ["landed"]:
            assert reader.got == sent
        else:
            assert reader.told == ["lost"]
            assert b"".join(sent).startswith(b"".join(reader.got))
