"""When requests are sent: the options `--rate`, `--concurrency`, `--arrival`, `--burstiness` as arrivals."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tailrace.model.errors import InputError
from tailrace.model.thresholds import S
from tailrace.store.text_file import bounded_lines
from tailrace.workload.arrivals import Arrivals
from tailrace.workload.process import ArrivalKind, parse_process
from tailrace.workload.shape import Segment, Shape
from tailrace.workload.shape_text import parse_series, parse_shape

__all__ = ["arrivals_from", "natural_span_ns"]


def arrivals_from(
    *,
    rate: str | None,
    arrival: str | None,
    burstiness: float | None,
    concurrency: str | None = None,
    trace: bool = False,
    default_concurrency: int | None = None,
) -> Arrivals:
    """The arrivals that the options name; with a trace and neither rate nor concurrency, the trace's own times.

    `default_concurrency` is that of a closed loop without any option. Raises `InputError` for what cannot be read, and
    where options contradict each other.
    """
    workers = _workers(concurrency)
    process = None if arrival is None else parse_process(arrival)
    shape = None if rate is None else _rate(rate)
    clients = process.clients if process is not None else None
    if shape is None and clients is not None and clients.every_ns is not None:
        level = clients.count * S / clients.every_ns
        shape = Shape(segments=[Segment(start=level, end=level)])
    elif shape is not None and clients is not None and clients.every_ns is not None:
        raise InputError("the rate is given twice: by --rate and by 'every'", place="--arrival", remedy="Leave out one")
    if shape is None:
        if process is not None or burstiness is not None:
            raise InputError("arrivals need a rate", place="--arrival", remedy="Add --rate, for example --rate 5")
        if trace and workers is None:
            return Arrivals(kind=ArrivalKind.TRACE)
        if workers is None:
            return Arrivals(kind=ArrivalKind.CLOSED, concurrency=default_concurrency)
        return Arrivals(kind=ArrivalKind.CLOSED, concurrency=_whole(workers.peak), shape=_moving(workers))
    kind = process.kind if process is not None else ArrivalKind.POISSON if burstiness is None else ArrivalKind.GAMMA
    if burstiness is not None and kind is not ArrivalKind.GAMMA:
        raise InputError(f"means nothing for {kind} arrivals", place="--burstiness", remedy="Use --arrival gamma")
    if workers is not None and workers.constant is None:
        raise InputError(
            "with --rate, the most that may be in flight is one number", place="--concurrency",
            remedy="Write --concurrency 32, or leave out --rate for workers who come in over time",
        )  # fmt: skip
    own = process.burstiness if process is not None and process.burstiness != 1.0 else 1.0
    if burstiness is not None and own not in (1.0, burstiness):
        raise InputError("the burstiness is given twice", place="--burstiness", remedy="Leave out one")
    return Arrivals(
        kind=kind,
        rate=shape.constant,
        shape=None if shape.constant is not None else shape,
        burstiness=own if burstiness is None else burstiness,
        clients=clients,
        concurrency=None if workers is None else _whole(workers.peak),
    )


def natural_span_ns(rate: str | None, concurrency: str | None) -> int | None:
    """How long a run should take that sees all of a shape once; `None` where neither option has a length."""
    if rate is not None:
        return _rate(rate).span_ns
    return None if concurrency is None else parse_shape(concurrency, place="--concurrency").span_ns


def _rate(text: str) -> Shape:
    if not text.startswith("@"):
        return parse_shape(text)
    name, _, rest = text[1:].partition(" ")
    rest = rest.strip()
    if rest not in ("", "linear", "repeat", "linear repeat"):
        raise InputError(f"cannot read {rest!r} after the file", place="--rate", remedy="Write '@rates.csv linear'")
    try:
        with Path(name).open(encoding="utf-8") as lines:
            shape = parse_series(bounded_lines(lines), place=name, linear=rest.startswith("linear"))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot be read ({why})", place=name, remedy="Write --rate @FILE with rows of seconds,rate"
        ) from None
    if not rest.endswith("repeat"):
        return shape
    if len(shape.segments) < 2:
        raise InputError("one row cannot repeat", place=name, remedy="The last row's time ends the round: 60,5")
    return msgspec.structs.replace(shape, segments=shape.segments[:-1], repeat=True)


def _workers(text: str | None) -> Shape | None:
    if text is None:
        return None
    shape = parse_shape(text, place="--concurrency") if text.strip() != "0" else None
    if shape is None or shape.peak < 1:
        raise InputError(f"must be at least 1, got {text}", place="--concurrency")
    _whole(shape.peak)
    return shape


def _whole(value: float) -> int:
    if value != round(value):
        raise InputError(f"{value:g} is no whole number of workers", place="--concurrency")
    return round(value)


def _moving(workers: Shape) -> Shape | None:
    return None if workers.constant is not None else workers
