"""How well queue and prefill are inferred where the engine reports neither, on the simulated engine's truth.

    python bench/inference.py [--quick]

Each row is an engine and a load in virtual time, five seeds of 1,000 requests (`--quick`: one of 600). What the model
sees is late by an exponential time of 0.5 ms in the mean, at the send and at each token. Prints the table of
docs/inference.md; exit 1 where a shown stage is not within max(15 %, 10 ms) at the median, or errors are larger than
stated in more than one of ten cases.
"""

from __future__ import annotations

import math
import sys

from tailrace.testing.inferred import SETTINGS, Score, score


def row(one: Score) -> str:
    def cell(form: str, *values: float) -> str:
        return " / ".join("–" if math.isnan(value) else format(value, form) for value in values)

    return (
        f"| {one.setting} | {one.n:,} | {cell('.0%', one.queue_shown, one.prefill_shown)} | "
        f"{cell('.1f', one.median_queue_error_ms, one.median_prefill_error_ms)} | "
        f"{cell('.1f', one.p90_queue_error_ms, one.p90_prefill_error_ms)} | "
        f"{cell('.1%', one.queue_good, one.prefill_good)} | {cell('.1%', one.covered)} |"
    )


def main() -> None:
    quick = "--quick" in sys.argv
    print("| engine and load | n | shown | median error, ms | p90 error, ms | within 15 % or 10 ms | covered |")
    print("|---|---|---|---|---|---|---|")
    bad = []
    for setting in SETTINGS:
        found = score(setting, (11,) if quick else (11, 12, 13, 14, 15), requests=600 if quick else 1000)
        print(row(found), flush=True)
        if min(found.queue_good, found.prefill_good) < 0.5 or found.covered < 0.9:
            bad.append(setting.name)
    print("queue / prefill in each cell; covered: the error is at most the stated one")
    for name in bad:
        print(f"NOT AS STATED: {name}")
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
