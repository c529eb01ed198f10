"""What rules ask again and again is asked once of each arm, and anew of each other arm."""

from __future__ import annotations

import msgspec

from tailrace.diagnose.arms.asked import condition, figure, number_stated, said, told, worded
from tailrace.diagnose.arms.asked_once import asked_once
from tailrace.diagnose.arms.moments import moments
from tailrace.diagnose.arms.pairs import pairs
from tailrace.diagnose.observed import Arm, Observed, Quoted, Setting

ARM = Arm(
    name="cap 16",
    label="cap 16",
    keys={"concurrency": 8.0},
    values={"ttft.p99": Quoted(quantity="ttft", stat="p99", value=90.0, unit="ms", label="TTFT p99")},
)


def test_a_question_is_asked_once_of_each_arm_and_with_each_words() -> None:
    seen: list[tuple[str, str, bool]] = []

    @asked_once
    def asked(arm: Arm, words: str, *, loud: bool = False) -> str | None:
        seen.append((arm.name, words, loud))
        return None if words == "nothing" else f"{arm.name} {words}"

    other = msgspec.structs.replace(ARM, name="cap 32")
    for _ in range(3):
        assert asked(ARM, "a") == "cap 16 a"
        assert asked(other, "a") == "cap 32 a"
        assert asked(ARM, "nothing") is None
        assert asked(ARM, "a", loud=True) == "cap 16 a"
    assert seen == [("cap 16", "a", False), ("cap 32", "a", False), ("cap 16", "nothing", False), ("cap 16", "a", True)]


def test_two_questions_with_the_same_words_have_their_own_answers() -> None:
    assert worded(ARM, "ttft") is ARM.values["ttft.p99"]
    assert worded(ARM, "ttft", relative=True) is None
    assert condition(ARM, "cap") == 16.0
    assert condition(ARM, "ttft") == 90.0
    assert figure(ARM, "ttft") is None
    assert figure(ARM, "ttft", stats=("p99",)) is ARM.values["ttft.p99"]


def test_an_arm_that_was_changed_is_asked_anew() -> None:
    assert said(ARM) == "cap 16"
    assert condition(ARM, "concurrency") == 8.0
    changed = msgspec.structs.replace(ARM, label="cap 64", keys={"concurrency": 9.0, "mode": "stream"})
    assert said(changed) == "cap 64 cap 16 stream"
    assert condition(changed, "concurrency") == 9.0
    (pair,) = pairs([ARM, msgspec.structs.replace(ARM, name="again")])
    assert pair.same == ("concurrency 8",)
    assert not list(pairs([ARM, changed]))
    # What is kept with an arm is no part of it.
    assert msgspec.structs.replace(ARM) == ARM
    assert msgspec.json.encode(ARM) == msgspec.json.encode(msgspec.structs.replace(ARM))


def test_other_evidence_has_other_answers() -> None:
    whole = Observed(settings=[Setting(name="replicas", value=2.0)])
    part = msgspec.structs.replace(
        whole, settings=[Setting(name="replicas", value=4.0), Setting(name="note", value="x")]
    )
    for _ in range(2):
        assert [number_stated(body, "replicas").value for body in (whole, part)] == [2.0, 4.0]  # type: ignore[union-attr]
        assert [len(told(body)) for body in (whole, part)] == [1, 1]
        assert moments(whole) == moments(part) == []
