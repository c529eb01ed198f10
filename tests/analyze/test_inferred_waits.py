"""Queue and prefill of the simulated engine, inferred from what a client sees, against its truth."""

import math

import numpy as np
import pytest

from tailrace.analyze.inferred_waits import infer_waits, with_inferred
from tailrace.model.stage import STAGES
from tailrace.store.table import RecordTable
from tailrace.testing.inferred import SETTINGS, Score, as_seen, score, true_records

BY_NAME = {setting.name: setting for setting in SETTINGS}
UNREADABLE = "chat, four tokens an event"
"""Its tokens mark no steps, so nothing is shown."""


def judged(found: Score) -> None:
    # The promise: at the median within max(15 %, 10 ms), and errors no larger than stated in nine of ten.
    assert found.queue_good >= 0.9, found
    assert found.prefill_good >= 0.9, found
    assert found.median_queue_error_ms <= 10, found
    assert found.median_prefill_error_ms <= 10, found
    assert found.covered >= 0.9, found


@pytest.mark.parametrize("name", ["chat", "chat and long, not chunked", "short, 8 places", "chat, half of it others'"])
def test_within_what_is_stated(name: str):
    found = score(BY_NAME[name], (1,), requests=300)
    judged(found)
    assert min(found.queue_shown, found.prefill_shown) > 0.4


def test_merged_tokens_leave_the_wait_unattributed():
    found = score(BY_NAME[UNREADABLE], (1,), requests=150)
    assert found.queue_shown == found.prefill_shown == 0


@pytest.mark.tier("ci")
@pytest.mark.long("twenty-two engines and loads, three seeds each", timeout=300)
@pytest.mark.parametrize("late_ms", [0.5, 2.0])
def test_the_whole_grid(late_ms: float):
    assert len(SETTINGS) >= 12
    for setting in SETTINGS:
        found = score(setting, (21, 22, 23), requests=800, late_ms=late_ms)
        if setting.name == UNREADABLE:
            assert found.queue_shown == 0
            continue
        if late_ms < 1:
            judged(found)
        # With 2 ms of delay a stage must still not be worse than stated, however few are shown.
        assert found.covered >= 0.85, found


def seen_table(name: str = "chat", requests: int = 200) -> tuple[RecordTable, RecordTable]:
    setting = BY_NAME[name]
    truth = true_records(setting, 3, requests)
    rng = np.random.default_rng(4)
    seen = [as_seen(record, setting, late_ms=0.5, rng=rng) for record in truth]
    return RecordTable.from_records(truth), RecordTable.from_records(seen)


def test_stages_still_add_up_and_say_their_source():
    _, seen = seen_table()
    filled = with_inferred(seen)
    shown = 0
    for index in range(len(filled)):
        stages = [filled.column(f"{stage}_ns")[index] for stage in STAGES]
        assert sum(value for value in stages if not math.isnan(value)) == filled.column("e2e_ns")[index]
        sources = filled.column("stage_sources")[index]
        if not math.isnan(filled.column("prefill_ns")[index]):
            shown += 1
            assert sources["prefill"].startswith("inferred(")
            assert "±" in sources["prefill"]
    assert shown > len(filled) / 2
    assert np.isnan(seen.column("prefill_ns")).all(), "the table that was given is not touched"


def test_what_was_reported_is_left_alone():
    truth, _ = seen_table()
    assert with_inferred(truth) is truth


def test_without_a_common_clock_nothing_is_inferred():
    _, seen = seen_table(requests=60)
    columns = {**seen.columns, "run_offset_ns": np.full(len(seen), np.nan)}
    assert infer_waits(RecordTable(columns, seen.timelines)) == [None] * len(seen)


def test_without_timelines_nothing_is_inferred():
    _, seen = seen_table(requests=60)
    assert infer_waits(RecordTable(seen.columns)) == [None] * len(seen)


def test_truth_of_some_calibrates_the_others():
    truth, seen = seen_table(requests=300)
    half = np.arange(len(seen)) % 2 == 0
    columns = dict(seen.columns)
    for name in ("queue_ns", "queue_engine_ns", "prefill_ns"):
        # What the engine says is 60 ms off from what its steps show: the others must say that they may be, too.
        moved = truth.column(name) + 60e6
        columns[name] = np.where(half, moved, columns[name])
    splits = infer_waits(RecordTable(columns, seen.timelines))
    assert all(split is None for split, known in zip(splits, half, strict=True) if known)
    late = [split for split in splits[-60:] if split is not None]
    assert late
    assert np.median([split.error_ns for split in late]) >= 50e6
