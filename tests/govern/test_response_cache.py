from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tailrace.govern.response_cache import ENTRY_OVERHEAD, ResponseCache

KB = 1024


def cache(bound: int = 10 * KB, entry: int = 4 * KB, **more) -> ResponseCache[str]:
    return ResponseCache(bound, entry, **more)


def test_an_answer_is_here_until_it_is_too_old():
    kept = cache()
    assert kept.store(b"k", "answer", 10, now=100, ttl_ns=50)
    found = kept.look(b"k", 149)
    assert found is not None
    assert (found.answer, found.age_ns(149)) == ("answer", 49)
    assert kept.look(b"k", 150) is None
    assert (len(kept), kept.bytes, kept.counters.expired) == (0, 0, 1)


def test_a_client_may_want_a_younger_one_and_the_entry_stays():
    kept = cache()
    kept.store(b"k", "answer", 10, now=0, ttl_ns=100)
    assert kept.look(b"k", 50, max_age_ns=49) is None
    assert kept.look(b"k", 50, max_age_ns=50) is not None


def test_the_least_recently_used_goes_first():
    kept = cache(bound=3 * (KB + ENTRY_OVERHEAD))
    for key in (b"a", b"b", b"c"):
        kept.store(key, "x", KB, 0, 100)
    kept.look(b"a", 1)
    kept.store(b"d", "x", KB, 1, 100)
    assert [kept.look(key, 1) is not None for key in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    assert kept.counters.evictions == 1


def test_what_is_too_large_is_not_kept_and_evicts_nobody():
    kept = cache()
    kept.store(b"a", "x", KB, 0, 100)
    assert not kept.store(b"b", "x", 4 * KB, 0, 100)
    assert kept.look(b"a", 1) is not None
    assert kept.counters.too_large == 1


def test_a_newer_answer_takes_the_place_of_an_older():
    kept = cache()
    kept.store(b"k", "old", KB, 0, 100)
    kept.store(b"k", "new", 10, 5, 100)
    found = kept.look(b"k", 6)
    assert found is not None
    assert (found.answer, kept.bytes, len(kept)) == ("new", 10 + ENTRY_OVERHEAD, 1)


def test_purge_and_resize_tell_whoever_keeps_an_index():
    gone: list[bytes] = []
    kept = cache(on_drop=gone.append)
    kept.store(b"a", "x", KB, 0, 100)
    kept.store(b"b", "x", KB, 0, 100)
    kept.resize(KB + ENTRY_OVERHEAD, KB * 2)
    assert gone == [b"a"]
    assert kept.purge() == 1
    assert gone == [b"a", b"b"]
    assert kept.bytes == 0


def test_the_sweep_gives_back_what_nobody_asks_for():
    kept = cache()
    kept.store(b"a", "x", 10, 0, 10)
    kept.store(b"b", "x", 10, 0, 100)
    assert kept.sweep(50) == 1
    assert len(kept) == 1


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.gone: list[bytes] = []
        self.kept: ResponseCache[bytes] = ResponseCache(8 * KB, 3 * KB, on_drop=self.gone.append)
        self.stored: dict[bytes, tuple[bytes, int]] = {}

    @rule(key=st.binary(min_size=1, max_size=1), size=st.integers(0, 4 * KB), ttl=st.integers(1, 100))
    def store(self, key, size, ttl):
        answer = key + bytes([size % 256])
        if self.kept.store(key, answer, size, self.now, ttl):
            self.stored[key] = (answer, self.now + ttl)

    @rule(key=st.binary(min_size=1, max_size=1))
    def look(self, key):
        found = self.kept.look(key, self.now)
        if found is not None:
            answer, until = self.stored[key]
            assert found.answer == answer
            assert self.now < until

    @rule(by=st.integers(0, 60))
    def later(self, by):
        self.now += by

    @rule()
    def sweep(self):
        self.kept.sweep(self.now)

    @invariant()
    def bounds_hold(self):
        assert 0 <= self.kept.bytes <= 8 * KB
        assert (self.kept.bytes == 0) == (len(self.kept) == 0)
        counters = self.kept.counters
        assert counters.stores - len(self.gone) == len(self.kept)


TestMachine = Machine.TestCase


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=2), st.integers(0, 2000)), max_size=60))
def test_its_bytes_are_those_of_its_entries(stores):
    kept: ResponseCache[int] = ResponseCache(5 * KB, 2 * KB)
    for key, size in stores:
        kept.store(key, size, size, 0, 10)
    held = [found.size for key in {key for key, _ in stores} if (found := kept.look(key, 1)) is not None]
    assert sum(held) == kept.bytes <= 5 * KB


def test_an_answer_past_its_time_is_given_only_where_freshness_is_given_up():
    kept = cache()
    kept.grace_ns = 100
    kept.store(b"k", "answer", 10, now=0, ttl_ns=50)
    assert kept.look(b"k", 60) is None
    kept.give_late = True
    assert kept.look(b"k", 60) is not None
    assert kept.look(b"k", 60, max_age_ns=55) is None  # what the client says still counts
    assert kept.look(b"k", 150) is None
    assert (len(kept), kept.counters.expired) == (0, 1)


def test_within_the_grace_the_sweep_keeps_it_and_a_new_one_replaces_it():
    kept = cache()
    kept.grace_ns = 100
    kept.store(b"k", "old", 10, now=0, ttl_ns=50)
    assert kept.sweep(149) == 0
    kept.store(b"k", "new", 10, now=60, ttl_ns=50)
    found = kept.look(b"k", 100)
    assert found is not None
    assert found.answer == "new"
    kept.grace_ns = 0
    assert kept.sweep(110) == 1
