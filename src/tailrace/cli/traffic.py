"""Which requests a command sends or simulates: the options `--mix`, `--prompt-tokens/--output-tokens`, `--trace`."""

from __future__ import annotations

from tailrace.app.trace_source import read_trace_source
from tailrace.cli.durations import parse_span
from tailrace.model.errors import InputError
from tailrace.workload.length import parse_length
from tailrace.workload.mix import TrafficClass, parse_mix
from tailrace.workload.trace import Trace
from tailrace.workload.trace_formats import parse_columns

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


def trace_file(
    path: str, *, speed: float, seed: int, begin: str | None = None, end: str | None = None, columns: str | None = None
) -> Trace:
    """Read a recorded trace, between two of its own times if they are given.

    Raises `InputError` for a file that cannot be read or understood.
    """
    low = 0 if begin is None else parse_span(begin, place="--trace-from")
    high = None if end is None else parse_span(end, place="--trace-to")
    if high is not None and high <= low:
        raise InputError("is not after --trace-from", place="--trace-to", remedy="Write --trace-from 5m --trace-to 10m")
    return read_trace_source(
        path,
        speed=speed,
        seed=seed,
        window_ns=(low, high),
        columns=None if columns is None else parse_columns(columns),
    )
