"""A table of requests of two arms, one from before and one from after, is two windows for the rules on records."""

import json

import pytest

from tailrace.diagnose.observed import Arm, Role
from tailrace.diagnose.readers.roles import with_roles
from tailrace.model.finding import Level
from tests.diagnose.evidence_texts import asked, codes, found, said

USUAL = {"queue": 8.0, "preprocess": 12.0, "encode": 10.0, "prefill": 90.0, "decode": 900.0, "postprocess": 6.0}


def requests(arms, *, n=120, digits=1):
    """`arms`: name -> what replaces a stage in it, or None; or name -> function of i that gives a whole row."""
    rows = []
    for place, (arm, change) in enumerate(arms.items()):
        for i in range(n):
            stages = {key: value * (1 + (i * 7) % 5 / 50) for key, value in USUAL.items()} | (change or {})
            begin = 2000.0 * i + 900_000.0 * place
            first = begin + sum(stages[key] for key in ("queue", "preprocess", "encode", "prefill"))
            rows.append(
                {
                    "id": f"{arm}{i}",
                    "arm": arm,
                    "t_send_ms": begin,
                    "t_first_ms": round(first, digits),
                    "t_last_ms": round(begin + sum(stages.values()), digits),
                    "status": "ok",
                    "prompt_tokens": 600,
                    "output_tokens": 60,
                    "stage_ms": {key: round(value, 2) for key, value in stages.items()},
                }
            )
    return rows


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("names", [("before", "after"), ("old", "new"), ("baseline", "candidate")])
@pytest.mark.parametrize(
    ("stage", "code"),
    [("preprocess", "PREPROCESS_SLOW"), ("postprocess", "POSTPROCESS_SLOW"), ("encode", "ENCODE_SLOW")],
)
def test_the_stage_that_grew_is_named(tmp_path, names, stage, code):
    result = asked(tmp_path, requests_jsonl=lines(requests({names[0]: None, names[1]: {stage: 640.0}})))
    assert result.findings[0].code == code
    assert "640 ms" in result.findings[0].statement


def test_a_stage_that_grew_within_the_objective_is_named_too(tmp_path):
    result = asked(tmp_path, requests_jsonl=lines(requests({"before": None, "after": {"preprocess": 190.0}})))
    assert result.findings[0].code == "PREPROCESS_SLOW"
    assert "12 ms before" in result.findings[0].statement


def test_two_windows_that_are_alike_are_no_complaint(tmp_path):
    assert asked(tmp_path, requests_jsonl=lines(requests({"before": None, "after": None}))).findings == []


@pytest.mark.parametrize("names", [("blue", "green"), ("alpha", "beta"), ("us", "eu")])
def test_arms_of_which_nobody_says_the_order_are_no_windows(tmp_path, names):
    rows = requests({names[0]: None, names[1]: {"preprocess": 640.0}})
    assert "PREPROCESS_SLOW" not in codes(tmp_path, requests_jsonl=lines(rows))
    for row in rows:
        if row["arm"] == names[1]:
            row |= {key: row[key] - 900_000.0 for key in ("t_send_ms", "t_first_ms", "t_last_ms")}
    finding = found(tmp_path, "PREPROCESS_SLOW", requests_jsonl=lines(rows))
    assert f"arm {names[1]}" in finding.statement, "side by side, one of them is slow in a stage"


def test_two_files_named_before_and_after_are_windows(tmp_path):
    parts = requests({"x": None}), requests({"x": {"encode": 640.0}})
    for rows in parts:
        for row in rows:
            del row["arm"]
    result = asked(tmp_path, before_jsonl=lines(parts[0]), after_jsonl=lines(parts[1]))
    assert result.findings[0].code == "ENCODE_SLOW"


def mixed(share):
    """(prompt tokens, prefill in ms) of the i-th request, `share` of them long."""

    def of(i):
        tokens = 12_000 if i % round(1 / share) == 0 else 800
        return tokens, tokens / 8.0 * (1 + i % 7 / 100)

    return of


@pytest.mark.parametrize(("shares", "code"), [((0.05, 0.25), "MIX_SHIFT"), ((0.25, 0.25), None)])
def test_another_mix_is_told_from_slower_requests(tmp_path, shares, code):
    rows = requests({"before": None, "after": None}, n=300)
    for arm, share in zip(("before", "after"), shares, strict=True):
        of = mixed(share)
        for i, row in enumerate(row for row in rows if row["arm"] == arm):
            row["prompt_tokens"], prefill = of(i)
            row["t_first_ms"], row["t_last_ms"] = row["t_send_ms"] + prefill + 5, row["t_send_ms"] + prefill + 905
            row["stage_ms"] = {"queue": 5, "prefill": prefill, "decode": 900}
    named = codes(tmp_path, requests_jsonl=lines(rows))
    assert named[:1] == [code] if code else "MIX_SHIFT" not in named


def leaving(share):
    rows = requests({"before": None, "after": None})
    for i, row in enumerate(row for row in rows if row["arm"] == "after"):
        if i % 100 < 100 * share:
            row |= {"status": "cancelled", "output_tokens": 20 + i * 53 % 400}
            row["t_last_ms"] = row["t_first_ms"] + 20.0 * row["output_tokens"]
            del row["stage_ms"]
    return lines(rows)


def test_clients_that_leave_more_than_before(tmp_path):
    finding = found(tmp_path, "CANCEL_STORM", requests_jsonl=leaving(0.4))
    assert finding.level is Level.CONSISTENT
    assert "0.0% before" in finding.statement
    assert found(tmp_path, "CANCEL_STORM", requests_jsonl=leaving(0.0)) is None
    alone = leaving(0.4).replace('"before"', '"after"')
    assert found(tmp_path, "CANCEL_STORM", requests_jsonl=alone).level is Level.SUSPECTED


def repeated(attempts):
    rows = []
    for i in range(80):
        for a in range(attempts if i >= 30 else 1):
            last = a == (attempts if i >= 30 else 1) - 1
            begin = 500.0 * i + 2100.0 * a
            rows.append(
                {
                    "id": f"q{i}.{a}",
                    "retry_of": f"q{i}.0" if a else "",
                    "t_send_ms": begin,
                    "t_first_ms": begin + 600 if last else None,
                    "t_last_ms": begin + 2000 + 13 * (i % 9),
                    "status": "ok" if last else "error",
                    "http_status": 200 if last else 503,
                    "output_tokens": 80 if last else None,
                }
            )
    return lines(rows)


def test_repeats_of_one_request_are_counted_together(tmp_path):
    finding = found(tmp_path, "RETRY_STORM", requests_jsonl=repeated(3))
    assert finding is not None
    assert "180 attempts for 80 requests" in said(finding)
    assert found(tmp_path, "RETRY_STORM", requests_jsonl=repeated(1)) is None


@pytest.mark.parametrize("name", ["json_schema", "structured", "tool call"])
def test_a_class_named_after_its_grammar_has_one(tmp_path, name):
    rows = requests({"run": None})
    for i, row in enumerate(rows):
        row["group"] = name if i % 4 == 0 else "plain"
        late = 2900.0 + 40 * (i % 5) if i % 4 == 0 else 130.0 + i % 7
        row["t_first_ms"], row["t_last_ms"] = row["t_send_ms"] + late, row["t_send_ms"] + late + 59 * 21
        del row["stage_ms"]
    text = lines(rows)
    assert asked(tmp_path, requests_jsonl=text).findings[0].code == "MIX_STRUCTURED_OUTPUT"
    plain = text.replace(f'"{name}"', '"other"')
    assert found(tmp_path, "MIX_STRUCTURED_OUTPUT", requests_jsonl=plain) is None


@pytest.mark.parametrize(
    ("labels", "roles"),
    [
        (("run.before", "run.after"), (Role.BEFORE, Role.AFTER)),
        (("no speculation", "eagle k=15"), (Role.BEFORE, Role.AFTER)),
        (("vllm 0.9.1", "vllm 0.10.0"), (Role.BEFORE, Role.AFTER)),
        (("x.one", "x.two"), (Role.NONE, Role.NONE)),
    ],
)
def test_labels_tell_the_order(labels, roles):
    assert tuple(arm.role for arm in with_roles([Arm(name=label, label=label) for label in labels])) == roles


@pytest.mark.parametrize("digits", [0, 1, 3])
def test_stages_written_with_other_digits_than_the_stamps_are_kept(tmp_path, digits):
    rows = requests({"before": None, "after": {"encode": 640.0}}, digits=digits)
    assert asked(tmp_path, requests_jsonl=lines(rows)).findings[0].code == "ENCODE_SLOW"
