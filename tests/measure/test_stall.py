from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.measure.dialects import CHAT
from tailrace.measure.meter import StreamMeter
from tailrace.measure.summary import StreamSummary
from tailrace.model.thresholds import MS, SlowThresholds
from tests.measure.transcripts import DONE, delta, wire

WORD = wire((None, delta(content=" w")))


def run(gaps_ms: list[float], thresholds: SlowThresholds | None = None) -> StreamSummary:
    meter = StreamMeter(CHAT, origin_ns=0, thresholds=thresholds)
    now = 1
    meter.feed(WORD, now)
    for gap in gaps_ms:
        now += round(gap * MS)
        meter.feed(WORD, now)
    meter.feed(wire(DONE), now)
    return meter.summary()


def test_three_medium_gaps_in_a_row_are_one_stall() -> None:
    got = run([20, 151, 160, 170, 20])
    assert (got.stall_count, got.slow, got.chunk_gap_over) == (1, ["stall"], 3)
    assert got.stall_longest_ns == 170 * MS


def test_two_in_a_row_or_exactly_150_are_none() -> None:
    assert run([151, 160, 20, 151, 160]).stall_count == 0
    assert run([150, 150, 150, 150]).stall_count == 0


def test_a_long_run_counts_once_and_a_second_run_again() -> None:
    got = run([200] * 9 + [10] + [200] * 3)
    assert got.stall_count == 2


def test_one_giant_gap_is_a_stall_of_its_own() -> None:
    got = run([20] * 30 + [9885] + [20])
    assert (got.stall_count, got.slow, got.stall_longest_ns) == (1, ["gap"], 9885 * MS)


def test_a_giant_gap_inside_a_run_is_the_same_stall() -> None:
    got = run([20] * 10 + [160, 9885, 170, 180] + [20])
    assert (got.stall_count, got.slow) == (1, ["stall", "gap"])
    assert got.stall_longest_ns == 9885 * MS


def test_a_single_gap_is_judged_against_the_last_ten() -> None:
    slow = SlowThresholds(gap_ns=10_000 * MS)
    assert run([60] * 20 + [599], slow).stall_count == 0
    assert run([60] * 20 + [601], slow).stall_count == 1
    # The window is the last ten: an older rhythm does not excuse it.
    assert run([400] * 20 + [20] * 10 + [520], slow).stall_count == 1
    assert run([400] * 20 + [20] * 4 + [520], slow).stall_count == 0


def test_the_first_gap_has_no_rhythm_to_be_judged_against() -> None:
    assert run([501]).slow == ["gap"]


def test_a_gap_of_exactly_500_ms_is_none() -> None:
    assert run([20] * 10 + [500]).stall_count == 0
    assert run([20] * 10 + [500.001]).stall_count == 1


def test_the_open_wait_is_judged_by_the_sweeper() -> None:
    meter = StreamMeter(CHAT, origin_ns=0)
    assert not meter.check(400 * MS)
    assert meter.check(501 * MS)
    assert meter.slow == ["ttft"]
    fast = StreamMeter(CHAT, origin_ns=0)
    fast.feed(WORD, 1)
    fast.feed(WORD, 2)
    assert not fast.check(400 * MS)
    assert fast.check(600 * MS)
    assert fast.summary().stall_count == 0, "the gap is not over yet"


@given(st.lists(st.sampled_from([0, 10, 100, 149, 150, 151, 300, 501, 700, 5000]), max_size=40))
def test_both_rules_against_their_definition(gaps: list[int]) -> None:
    got = run([float(gap) for gap in gaps])
    episodes: list[list[int]] = [[]]
    for index, gap in enumerate(gaps):
        if gap > 150:
            episodes[-1].append(index)
        else:
            episodes.append([])

    def single(index: int) -> bool:
        recent = sorted(gaps[max(0, index - 10) : index])
        middle = (recent[(len(recent) - 1) // 2] + recent[len(recent) // 2]) / 2 if recent else 0
        return gaps[index] > max(500, 10 * middle)

    stalls = [run_ for run_ in episodes if run_ and (len(run_) >= 3 or any(map(single, run_)))]
    assert got.stall_count == len(stalls)
    assert got.chunk_gap_over == sum(gap > 150 for gap in gaps)
    assert ("stall" in got.slow) == any(len(run_) >= 3 for run_ in episodes)
    assert ("gap" in got.slow) == any(single(index) for run_ in episodes for index in run_)
    if stalls:
        longest = 0
        for run_ in stalls:
            # A run that is shorter than three is a stall only from its giant gap on.
            since = run_ if len(run_) >= 3 else run_[next(i for i, at in enumerate(run_) if single(at)) :]
            longest = max(longest, *(gaps[index] for index in since))
        assert got.stall_longest_ns == longest * MS
