"""Logs of text-generation-inference and text-embeddings-inference: one line a finished request."""

from __future__ import annotations

import re
from typing import Final

from tailrace.diagnose.observed import Clock, Rows
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.diagnose.readers.logs.context import Context
from tailrace.diagnose.readers.logs.request_table import RequestTable

__all__ = ["Tgi"]

_TIME: Final = re.compile(r'(\w+_time|time_per_token)="?([\d.]+) ?(ns|µs|μs|us|ms|s|m)(?:([\d.]+)s)?"?(?=[\s,}]|$)')
_GRAMMAR: Final = re.compile(r"grammar: (None|Some\()")
_TOKENS: Final = re.compile(r"max_new_tokens: Some\((\d+)\)")
_OPTIONS: Final = re.compile(r"\b(best_of|top_n_tokens|n|num_beams): (?:None|Some\((\d+)\)|(\d+))")
_NAMES: Final = {
    "total_time": "e2e",
    "validation_time": "preprocess",
    "tokenization_time": "preprocess",
    "queue_time": "queue",
    "inference_time": "compute",
    "time_per_token": "tpot",
}


class Tgi:
    """What the router says of each request."""

    dialect = "tgi log"

    def __init__(self, context: Context) -> None:
        """`context` gives the stamps."""
        self.context = context
        self.requests = RequestTable(context.source)

    def line(self, raw: bytes) -> bool:
        """A line with `total_time="…"`; False where it holds no time that is known."""
        text = raw.decode("utf-8", "replace")
        row: dict[str, float | str] = {}
        for name, number, unit, seconds in _TIME.findall(text):
            known = _NAMES.get(name)
            if known is None:
                continue
            # `1m2.5s`: minutes are written together with the seconds after them.
            value = (
                float(number) * 6e4 + float(seconds or 0) * 1e3 if unit == "m" else in_unit(float(number), unit, "ms")
            )
            if value is not None:
                row[known] = value
        if len(row) < 2:
            return False
        grammar = _GRAMMAR.search(text)
        if grammar is not None:
            row["grammar"] = "no" if grammar[1] == "None" else "yes"
        for name, some, bare in _OPTIONS.findall(text):
            row[name] = float(some or bare or 1)  # `None` is the usual one
        limit = _TOKENS.search(text)
        if limit is not None:
            row["max_tokens"] = float(limit[1])
        if "tpot" in row and row["tpot"] and "compute" in row:
            # The first token's prefill is in the inference time: a little more than the number of tokens.
            row["output_tokens"] = float(round(float(row["compute"]) / float(row["tpot"])))
        stamp = self.context.stamp(raw)
        if stamp is not None:
            row["at"] = stamp[0]
            self.requests.clock = stamp[1]
        else:
            self.requests.clock = Clock.NONE
        self.requests.add(self.context.number, row)
        return self.context.understood(self.dialect)

    def table(self) -> Rows | None:
        """All requests."""
        return self.requests.table()
