"""What is computed stream by stream is the same whether all gaps are looked at together or a few at a time."""

import itertools

import numpy as np
import pytest

from tailrace.analyze import gaps as gaps_module
from tailrace.analyze.gaps import Gaps
from tailrace.diagnose import expected_pace
from tailrace.diagnose.equal_work import tokens_an_event
from tailrace.diagnose.in_flight import account
from tailrace.diagnose.position_slope import position_slope
from tailrace.diagnose.record_evidence.gap_position import _by_anchor, _chance, _positions
from tailrace.diagnose.stream_bursts import stream_bursts
from tailrace.diagnose.window import Window
from tests.analyze.tables import request, table

ROWS = 40


def window(*, bursts: bool = True) -> Window:
    draw = np.random.default_rng(7)
    records = []
    for number in range(ROWS):
        gaps = draw.uniform(18, 22, 20 + 3 * number)
        if bursts and number % 3 == 0:
            gaps[::4] += 300.0
            gaps[1::4] = gaps[2::4] = gaps[3::4] = 0.1
        records.append(request(number, gaps_ms=gaps.tolist()))
    return Window(table(records))


@pytest.fixture(params=[1, 100, 1 << 20])
def most(request, monkeypatch):
    """Gaps that are looked at together."""
    monkeypatch.setattr(gaps_module.Gaps.parts, "__defaults__", (request.param,))
    return request.param


def test_bursts_are_told_from_each_stream_alone(most):
    seen = window()
    found = stream_bursts(seen)
    assert found.rows.tolist() == list(range(ROWS))
    for place in range(ROWS):
        mine = seen.gaps.ms[seen.gaps.row == place]
        instant = mine <= max(1.5, 0.1 * mine.mean())
        assert found.bursty[place] == (instant.mean() >= 0.5) == (place % 3 == 0), place
        assert found.events[place] == (mine.size + 1) / ((~instant).sum() + 1)
        assert found.first[place] == 1 + np.argmin(np.append(instant, False))
        between = np.median(mine[~instant]) if found.bursty[place] else np.nan
        assert found.gap_ms[place] == pytest.approx(between, nan_ok=True)


def test_positions_count_tokens_from_either_end(most):
    gaps = window().gaps
    chosen = np.arange(0, gaps.row.size, 5)
    after, before, tool = _positions(gaps, None, chosen)
    nth = np.concatenate([np.arange(1, size + 1) for size in np.bincount(gaps.row)])
    size = np.bincount(gaps.row)[gaps.row]
    assert after.tolist() == nth[chosen].tolist()
    assert before.tolist() == (size - nth + 1)[chosen].tolist()
    assert np.isnan(tool).all()
    assert _chance(gaps, None, 0, 3, 5) == ((nth >= 3) & (nth <= 5)).mean()


def test_positions_after_a_tool_call_begin_at_it(most):
    gaps = window().gaps
    tool = np.full(ROWS, np.nan)
    tool[4] = gaps.begin_ns[gaps.row == 4][6]
    (*_, found) = _positions(gaps, tool, np.flatnonzero(gaps.row == 4))
    assert np.isnan(found[:6]).all()
    assert found[6:].tolist() == list(range(1, found.size - 5))


def test_the_slope_does_not_depend_on_the_parts(most):
    found = position_slope(window(bursts=False))
    assert found is not None
    whole = position_slope_of_all(window().gaps)
    assert (found.n, found.streams) == (len(whole), ROWS)
    assert found.early_at == pytest.approx(float(np.quantile(whole, 0.1)))


def position_slope_of_all(gaps: Gaps):
    """Mean position of every whole stretch of sixteen gaps."""
    return [16 * nth + 8.5 for size in np.bincount(gaps.row) for nth in range(size // 16)]


def test_every_part_has_its_own_positions(most):
    gaps = window().gaps
    both = [np.concatenate([_by_anchor(part, None, anchor) for part in gaps.parts()]) for anchor in (0, 1)]
    assert (both[0] + both[1] == np.bincount(gaps.row)[gaps.row] + 1).all()


@pytest.mark.parametrize("small", [1, 1 << 16])
def test_the_pace_of_each_second_is_that_of_the_gaps_that_end_in_it(most, small, monkeypatch):
    monkeypatch.setattr(expected_pace, "_SMALL", small)
    seen, line = window(bursts=False), expected_pace._Line(5.0, 2.0)
    monkeypatch.setattr(expected_pace, "SLICE_S", 0.25)
    edges = np.arange(0.0, float(seen.end.max()) / 1e9 + 0.5, 0.25)
    found = expected_pace._by_slice(seen, line, 8.0, edges)
    gaps = seen.gaps
    end = (seen.start[gaps.row] + gaps.end_ns) / 1e9
    pace = gaps.ms / tokens_an_event(seen)[gaps.row]
    company = np.clip(account(seen).upstream().at((edges[:-1] + 0.125) * 1e9), 1.0, 8.0)
    for place, (begin, over) in enumerate(itertools.pairwise(edges)):
        mine = pace[(end >= begin) & (end < over)]
        if mine.size < expected_pace.LEAST_GAPS:
            assert np.isnan(found[place])
        else:
            assert found[place] == float(np.quantile(mine, 0.25)) / line(company)[place]
    assert np.isnan(found).any()
    assert not np.isnan(found).all()
    # Gaps that end behind the last slice are in none.
    assert np.array_equal(expected_pace._by_slice(seen, line, 8.0, edges[:4]), found[:3], equal_nan=True)


def test_the_rows_of_some_gaps_are_those_of_all(most):
    gaps = window().gaps
    assert gaps.rows_of(np.arange(gaps.size)).tolist() == gaps.row.tolist()
    assert gaps.rows_of(np.array([gaps.size - 1, 0, 20, 19])).tolist() == gaps.row[[gaps.size - 1, 0, 20, 19]].tolist()
