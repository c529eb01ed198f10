"""Kinds of traffic: requests that are alike in what they ask for, the same in two windows.

A kind is a cell of lane x prompt length x audio length x cached share x grammar (x output length, where the metric
holds the decoding). What a request asks for is its own; nothing here depends on how fast it was served.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.classes import prompt_tokens
from tailrace.analyze.labels import labelled
from tailrace.stats.decomposition import BUCKET_ROWS
from tailrace.store.table import RecordTable

__all__ = ["Traffic", "kinds_of_traffic"]

Ints = NDArray[np.int64]

_FINE: Final = (0, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_COARSE: Final = (0, 256, 1024, 4096, 16384)
_OUTPUT_FINE: Final = (0, 32, 64, 128, 256, 512, 1024, 2048)
_OUTPUT_COARSE: Final = (0, 64, 256, 1024)
_AUDIO: Final = (0.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_WITH_DECODE: Final = frozenset({"e2e", "e2e_last_token", "decode"})
_THIN: Final = 0.05
"""Resolution is lowered until no more than this share of either window lies in cells that are too thin to compare."""
_MOST: Final = 60
"""Cells that are kept, the largest; the rest is `other`."""


class Traffic(NamedTuple):
    """The kind of each row of both windows."""

    a: Ints
    b: Ints
    names: list[str]

    def shares(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Each kind's share of A and of B."""
        sizes = [np.bincount(side, minlength=len(self.names)).astype(np.float64) for side in (self.a, self.b)]
        return sizes[0] / max(sizes[0].sum(), 1.0), sizes[1] / max(sizes[1].sum(), 1.0)

    def comparable(self) -> NDArray[np.bool_]:
        """Kinds with at least 30 rows in both windows."""
        sizes = [np.bincount(side, minlength=len(self.names)) for side in (self.a, self.b)]
        mask: NDArray[np.bool_] = np.minimum(*sizes) >= BUCKET_ROWS
        return mask


class _Field(NamedTuple):
    codes: list[Ints]
    labels: list[str]


def kinds_of_traffic(a: RecordTable, b: RecordTable, metric: str = "ttft") -> Traffic:
    """Kinds of two windows, as fine as their sizes bear."""
    tables = [a, b]
    found = None
    for prompt, output in (
        (_FINE, _OUTPUT_FINE),
        (_FINE, _OUTPUT_COARSE),
        (_COARSE, _OUTPUT_COARSE),
        (_COARSE, (0, 256)),
        (_COARSE, (0,)),
    ):
        fields = _fields(tables, prompt, output if metric in _WITH_DECODE else (0,))
        found = _crossed(fields, tables)
        if _thin(found) <= _THIN:
            break
    assert found is not None
    return _largest(found)


def _fields(tables: list[RecordTable], prompt: tuple[int, ...], output: tuple[int, ...]) -> list[_Field]:
    lanes, lane_names = labelled(tables, "lane")
    fields = [_Field(lanes, [f"lane {name}" for name in lane_names])]
    fields.append(_binned([prompt_tokens(table) for table in tables], prompt, "prompts of {} tokens"))
    fields.append(_binned([table.column("audio_seconds") for table in tables], _AUDIO, "audio of {} s"))
    fields.append(_cached(tables))
    grammar = [table.column("grammar").astype(np.int64) for table in tables]
    fields.append(_Field(grammar, ["free text", "structured output"]))
    fields.append(_binned([table.column("output_tokens") for table in tables], output, "answers of {} tokens"))
    return fields


def _binned(values: list[NDArray[np.float64]], edges: tuple[float, ...], words: str) -> _Field:
    labels = [words.format("unknown length")]
    for place, edge in enumerate(edges):
        last = place + 1 == len(edges)
        labels.append(words.format(f"{edge:g}+" if last else f"{edge:g} to {edges[place + 1]:g}"))
    codes = [
        np.where(np.isnan(one), 0, np.searchsorted(edges, np.nan_to_num(one), side="right")).astype(np.int64)
        for one in values
    ]
    return _Field(codes, labels)


def _cached(tables: list[RecordTable]) -> _Field:
    """The share of the prompt that the engine had in its cache is what it was asked for, in thirds of meaning."""
    codes = []
    for table in tables:
        cached, prompt = table.column("cached_tokens"), prompt_tokens(table)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = cached / prompt
        codes.append(np.where(np.isnan(share), 0, np.searchsorted((0.05, 0.5), np.nan_to_num(share)) + 1))
    return _Field([one.astype(np.int64) for one in codes], ["", "not cached", "in part cached", "mostly cached"])


def _crossed(fields: list[_Field], tables: list[RecordTable]) -> Traffic:
    """All fields that differ at all, as one code."""
    sizes = [len(table) for table in tables]
    whole = np.zeros(sum(sizes), dtype=np.int64)
    used: list[tuple[_Field, int]] = []
    for field in fields:
        joined = np.concatenate(field.codes)
        if joined.size and (joined != joined[0]).any():
            whole = whole * len(field.labels) + joined
            used.append((field, len(field.labels)))
    present, codes = np.unique(whole, return_inverse=True)
    names = []
    for value in present.tolist():
        words: list[str] = []
        rest = value
        for field, size in reversed(used):
            rest, code = divmod(rest, size)
            if field.labels[code]:
                words.insert(0, field.labels[code])
        names.append(", ".join(words) or "all requests")
    return Traffic(codes[: sizes[0]], codes[sizes[0] :], names)


def _thin(traffic: Traffic) -> float:
    thin = ~traffic.comparable()
    return max(float(share[thin].sum()) for share in traffic.shares())


def _largest(traffic: Traffic) -> Traffic:
    """Cells thin in both windows, and those beyond the largest, become `other`."""
    sizes = [np.bincount(side, minlength=len(traffic.names)) for side in (traffic.a, traffic.b)]
    together = np.maximum(*sizes)
    keep = np.zeros(len(traffic.names), dtype=bool)
    keep[np.argsort(-together, kind="stable")[:_MOST]] = True
    keep &= together >= BUCKET_ROWS
    if keep.all():
        return traffic
    place = np.cumsum(keep) - 1
    names = [name for name, kept in zip(traffic.names, keep, strict=True) if kept]
    code = np.where(keep, place, len(names)).astype(np.int64)
    return Traffic(code[traffic.a], code[traffic.b], [*names, "other requests"])
