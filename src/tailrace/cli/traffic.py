"""Which requests a command sends or simulates: the options `--mix`, `--prompt-tokens/--output-tokens`, `--trace`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tailrace.model.errors import InputError
from tailrace.workload.length import parse_length
from tailrace.workload.mix import TrafficClass, parse_mix
from tailrace.workload.trace import TraceRow, read_trace

_PROMPT = "256"
_OUTPUT = "64"
"""The other length, where only one of the two is given (tokens)."""


def classes_from(
    *, mix: str | None, prompt_tokens: str | None, output_tokens: str | None, trace: bool, default: str
) -> list[TrafficClass]:
    """The classes that the options name; none with a trace, which has its own lengths.

    Raises `InputError` where more than one option gives the lengths, or one cannot be read.
    """
    lengths = prompt_tokens is not None or output_tokens is not None
    if (mix is not None) + lengths + trace > 1:
        raise InputError(
            "only one of --mix, --prompt-tokens/--output-tokens and --trace can give the lengths", place="--mix"
        )
    if trace:
        return []
    if not lengths:
        return parse_mix(mix if mix is not None else default)
    return [
        TrafficClass(
            name="request",
            prompt=parse_length(prompt_tokens or _PROMPT, place="--prompt-tokens"),
            output=parse_length(output_tokens or _OUTPUT, place="--output-tokens"),
        )
    ]


def trace_file(path: str, *, speed: float, seed: int) -> list[TraceRow]:
    """Read a recorded trace. Raises `InputError` for a file that cannot be read or understood."""
    try:
        with Path(path).open(encoding="utf-8") as lines:
            return read_trace(lines, rng=np.random.default_rng(seed), place=path, speed=speed)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot be read ({why})", place=path, remedy="Give --trace a CSV or JSON lines file"
        ) from None
