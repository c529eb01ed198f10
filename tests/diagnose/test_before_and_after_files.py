"""p99 worse, the mean unmoved, as a user asks it: two files and one command."""

import json

import numpy as np
import pytest

from tailrace.cli import main
from tailrace.export.jsonl import encode_lines
from tests.analyze.attribution.rivals import records
from tests.analyze.attribution.test_mix_and_stage import INJECTED, SCALES, SHARES

CI = pytest.mark.tier("ci")
pytestmark = pytest.mark.long("two windows of thousands of requests, resampled for their intervals")
PROMPTS = (100, 400, 1500, 6000, 24_000)


@pytest.fixture
def diagnosed(capsys):
    def run(before, after, *more):
        with pytest.raises(SystemExit) as end:
            main(["diagnose", str(after), "--before", str(before), "--json", *more])
        assert not end.value.code
        return json.loads(capsys.readouterr().out)

    return run


def split(result, metric):
    return next((one for one in result["attribution"] if one["kind"] == "mix_within" and one["about"] == metric), None)


# -- the four rivals, from exported records

RIVALS = {
    "more long prompts": ("MIX_SHIFT", "mix", ""),
    "a blocked post-processing thread": ("POSTPROCESS_SLOW", "within", "postprocess"),
    "a batch window": ("SCHED_BATCHER_WAIT", "within", "queue"),
    "a slower client": ("CLIENT_SLOW_READER", "within", "response"),
}


def exported(folder, kind, seed):
    path = folder / f"{kind.replace(' ', '-')}.jsonl"
    path.write_bytes(b"".join(encode_lines(records(kind, seed))))
    return path


@pytest.mark.parametrize("kind", [next(iter(RIVALS)), *(pytest.param(one, marks=CI) for one in list(RIVALS)[1:])])
def test_four_rivals_from_the_records_of_two_times(tmp_path, diagnosed, kind):
    code, part, stage = RIVALS[kind]
    result = diagnosed(exported(tmp_path, "nothing", 1), exported(tmp_path, kind, 2))
    assert result["findings"][0]["code"] == code
    told = split(result, "e2e")
    assert told["numbers"][f"{part}_low"] > 0
    assert "did not move" in told["text"]
    assert told["text"] in result["paragraph"] or split(result, "ttft")["text"] in result["paragraph"]
    if stage:
        shifted = [one["about"] for one in result["attribution"] if one["kind"] == "stage_shift"]
        assert stage in shifted


# -- the five injections, as tables of requests without a stage


def table(path, seed, shares=SHARES, slower=(1.0,) * 5, n=6000):
    draw = np.random.default_rng(seed)
    kind = draw.choice(5, n, p=np.array(shares) / sum(shares))
    first = (SCALES * np.array(slower))[kind] * draw.lognormal(0.0, 0.35, n)
    sent = np.cumsum(draw.exponential(50.0, n))
    tokens = np.array(PROMPTS)[kind] * draw.uniform(0.8, 1.2, n)
    path.write_text(
        "".join(
            json.dumps(
                {
                    "id": f"r{i}", "t_send_ms": sent[i], "t_first_ms": sent[i] + first[i],
                    "t_last_ms": sent[i] + first[i] + 400.0, "status": "ok", "prompt_tokens": int(tokens[i]),
                    "output_tokens": 20,
                }
            )
            + "\n"
            for i in range(n)
        )
    )  # fmt: skip
    return path


@pytest.mark.parametrize("name", [pytest.param(one, marks=() if one == "nothing" else CI) for one in INJECTED])
def test_five_injections_from_tables_of_requests(tmp_path, diagnosed, name):
    change, verdict, slower = INJECTED[name]
    result = diagnosed(table(tmp_path / "a.jsonl", 10), table(tmp_path / "b.jsonl", 20, **change))
    told = split(result, "ttft")
    assert (told is None) is (verdict == "")
    if verdict in ("mix", "both"):
        assert told["numbers"]["mix_low"] > 0
        assert "prompts of 16384 to 32768 tokens" in told["text"]
    if verdict in ("within", "both"):
        assert told["numbers"]["within_low"] > 0
    if verdict:
        assert told["text"] in result["paragraph"]
    kinds = {one["about"] for one in result["attribution"] if one["kind"] == "slower_kind"}
    assert bool(kinds) is (slower is not None)
    # Shares that are equal but for chance are no other work, though a quantile of lengths falls between two kinds.
    if name == "nothing":
        assert result["validity"] == []
