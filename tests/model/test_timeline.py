"""Timelines: which events carry tokens."""

from tailrace.model.timeline import TOKEN_KINDS, EventKind, Timeline


def test_only_token_kinds_are_token_stamps():
    kinds = list(EventKind)
    timeline = Timeline(at_ns=list(range(len(kinds))), kind=[int(kind) for kind in kinds], tokens=[-1] * len(kinds))
    assert timeline.token_stamps() == [number for number, kind in enumerate(kinds) if kind in TOKEN_KINDS]


def test_an_empty_timeline_has_none():
    assert Timeline().token_stamps() == []
