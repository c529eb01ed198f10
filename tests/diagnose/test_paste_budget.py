"""A paste is answered at once, however it is cut, and an interview reads its sources once."""

import time

from tailrace.app import diagnose as app
from tailrace.diagnose.bounds import MOST_ARMS
from tailrace.diagnose.gather import gather
from tailrace.diagnose.readers.paste import read_paste


def an_issue(parts: int) -> str:
    rows = "\n".join(f"| arm {j} | {50 + j} | {200 + 3 * j} |" for j in range(40))
    log = "\n".join(
        f"(APIServer pid=434) INFO 05-11 17:{i:02d}:24 [loggers.py:271] Engine 000: "
        "Avg prompt throughput: 10.0 tokens/s, "
        f"Avg generation throughput: {100 + i}.5 tokens/s, Running: 6 reqs, Waiting: 0 reqs, GPU KV cache usage: 5.4%, "
        "Prefix cache hit rate: 88.3%"
        for i in range(50)
    )
    words = "Before the change we have seen that the p99 was fine for all of our users."
    one = f"## Part\n{words}\n\n| run | TTFT p50 (ms) | TTFT p99 (ms) |\n|---|---|---|\n{rows}\n\n```\n{log}\n```\n"
    return one * parts


def test_ten_megabytes_of_an_issue_are_bounded_work():
    data = an_issue(700).encode()
    assert len(data) > 9_000_000
    begin = time.process_time()
    read = read_paste(data, "issue.md", app._decode)
    found = app.diagnose(gather(read))
    # The promise is 2 s; five times that still tells a rule that grows with the square of the rows from a busy machine.
    assert time.process_time() - begin < 10.0
    assert any("arms" in line and f"parsed {MOST_ARMS} of" in line for line in found.not_understood)


def test_arms_whose_side_is_told_are_kept_where_there_are_too_many():
    rows = "\n".join(f"| arm {j} | {50 + j} | {200 + 3 * j} |" for j in range(3 * MOST_ARMS))
    text = (
        f"| run | TTFT p50 (ms) | TTFT p99 (ms) |\n|---|---|---|\n{rows}\n| before | 50 | 90 |\n| after | 50 | 300 |\n"
    )
    evidence = gather(read_paste(text.encode(), "issue.md", app._decode))
    names = [arm.name for arm in evidence.observed.arms]
    assert len(names) == MOST_ARMS
    assert names[-2:] == ["before", "after"]


def test_sources_are_read_once_for_all_answers(tmp_path):
    path = tmp_path / "t.md"
    path.write_text(
        "| run | TTFT p50 (ms) | TTFT p99 (ms) |\n|---|---|---|\n| before | 50 | 90 |\n| after | 50 | 300 |\n"
    )
    given = app.Given([str(path)])
    first = given.diagnosis()
    path.unlink()
    assert given.diagnosis() == first
    told = given.diagnosis(["n=2000", "duration_s=600"])
    assert told != first
    assert given.diagnosis() == first
