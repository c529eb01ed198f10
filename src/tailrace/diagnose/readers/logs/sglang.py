"""SGLang's log: decode and prefill lines by rank, whatever keys a version has; retractions."""

from __future__ import annotations

import re
from typing import Final

from tailrace.diagnose.observed import Place, Series
from tailrace.diagnose.readers.logs.context import Context
from tailrace.diagnose.readers.logs.samples import MOST_GROUPS, Groups

__all__ = ["Sglang"]

_NAN: Final = float("nan")
_PAIR: Final = re.compile(
    rb"#?([A-Za-z][\w \-]{0,40}?(?: \(tokens?/s\))?): ?(True|False|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(%?)(?=[,.\s]|$)"
)
_RANK: Final = re.compile(rb"(?:DP\d+|TP\d+|EP\d+|PP\d+|CP\d+)(?: (?:DP|TP|EP|PP|CP)\d+)*(?=\])")
_RETRACTED: Final = re.compile(rb"#retracted_reqs: (\d+)")
_RATIO: Final = re.compile(rb"#new_token_ratio: ([\d.]+) ?-> ?([\d.]+)")

NAMES: Final = (
    "running",
    "waiting",
    "kv_usage",
    "swa_usage",
    "mamba_usage",
    "kv_tokens_used",
    "cuda_graph",
    "output_tok_s",
    "prompt_tok_s",
    "accept_length",
    "accept_share",
    "new_requests",
    "new_tokens",
    "cached_tokens",
    "pending_tokens",
    "after_idle",
)
_PLACE: Final = {name: place for place, name in enumerate(NAMES)}
_KEYS: Final = {
    b"running-req": "running",
    b"queue-req": "waiting",
    b"token usage": "kv_usage",
    b"full token usage": "kv_usage",
    b"swa token usage": "swa_usage",
    b"mamba usage": "mamba_usage",
    b"mamba num usage": "mamba_usage",
    b"token": "kv_tokens_used",
    b"full token": "kv_tokens_used",
    b"cuda graph": "cuda_graph",
    b"npu graph": "cuda_graph",
    b"cpu graph": "cuda_graph",
    b"graph": "cuda_graph",
    b"gen throughput (token/s)": "output_tok_s",
    b"gen throughput (tokens/s)": "output_tok_s",
    b"input throughput (token/s)": "prompt_tok_s",
    b"input throughput (tokens/s)": "prompt_tok_s",
    b"accept len": "accept_length",
    b"accept rate": "accept_share",
    b"new-seq": "new_requests",
    b"new-token": "new_tokens",
    b"cached-token": "cached_tokens",
    b"pending-token": "pending_tokens",
}
_WORDS: Final = {b"True": 1.0, b"False": 0.0}
_USAGE: Final = frozenset({"kv_usage", "swa_usage", "mamba_usage", "accept_share"})

_Group = tuple[str, str]


class Sglang:
    """What SGLang's lines say."""

    dialect = "sglang log"

    def __init__(self, context: Context) -> None:
        """`context` gets the events; the samples stay here until `series`."""
        self.context = context
        self._decode = Groups(NAMES)
        self._prefill = Groups(NAMES)
        self.lenient = False
        """Take a line for whole although keys are missing that every version writes."""
        self._idle: dict[_Group, bool] = {}
        """Whether nothing was decoding when the rank's last prefill came."""

    def batch(self, text: bytes, at: int, *, decode: bool) -> bool:
        """A `Decode batch` or `Prefill batch` line; `at` is where these words stand."""
        values = [_NAN] * len(NAMES)
        known = 0
        for key, said in self._pairs(text, at + 12):
            name = _KEYS.get(key)
            if name is None:
                continue
            # Rounded to two digits a full cache may read 1.00 or a little more.
            if said < 0 or (name in _USAGE and said > 1.05):
                self.context.rejected += 1
                continue
            place = _PLACE[name]
            value = min(said, 1.0) if name in _USAGE else said
            # Of two caches the fuller one limits (`full token usage` beside `token usage`).
            if name == "kv_usage" and values[place] == values[place]:
                value = max(value, values[place])
            values[place] = value
            known += 1
        # A line that a terminal broke goes on: what every version writes is still to come.
        cut = not self.lenient and (values[1] != values[1] or (decode and values[7] != values[7]))
        if known < 2 or cut or (decode and values[0] != values[0]):
            return False
        found = _RANK.search(text, 0, at)
        rank = "" if found is None else found[0].decode()
        group = (self.context.origin, rank)
        if decode:
            values[_PLACE["after_idle"]] = float(self._idle.get(group, False))
            self._idle.pop(group, None)
        else:
            # Nothing decoded when this prompt came: what the next decode line calls its rate includes the pause.
            running = values[0]
            if group in self._idle or len(self._idle) < MOST_GROUPS:
                self._idle[group] = running == 0 or self._idle.get(group, False)
        stamp = self.context.stamp(text, at)
        when = _NAN
        if stamp is not None:
            when, self.context.clock = stamp
        where = self._decode if decode else self._prefill
        where.add(group, (when, self.context.number, *values))
        return self.context.understood(self.dialect)

    @staticmethod
    def _pairs(text: bytes, begin: int) -> list[tuple[bytes, float]]:
        """`key: value` pairs; as they are separated in whole lines, else searched for."""
        out = []
        for part in text[begin:].split(b", "):
            key, _, said = part.rpartition(b": ")
            if not key:
                continue
            value = _WORDS.get(said)
            if value is None:
                try:
                    value = float(said)
                except ValueError:
                    return [
                        (name, _WORDS[word] if word in _WORDS else float(word) / (100.0 if percent else 1.0))
                        for name, word, percent in _PAIR.findall(text, begin)
                    ]
            out.append((key.lstrip(b"h., #"), value))
        return out

    def retracted(self, text: bytes) -> bool:
        """The cache is full and running requests are thrown back into the queue; the words vary by version."""
        count, ratio = _RETRACTED.search(text), _RATIO.search(text)
        attributes: dict[str, float | str] = {}
        if count is not None:
            attributes["requests"] = float(count[1])
        if ratio is not None:
            attributes["ratio_before"], attributes["ratio_after"] = float(ratio[1]), float(ratio[2])
        self.context.events.add("retracted", self.context.number, self.context.stamp(text), text, attributes)
        return self.context.understood(self.dialect)

    def series(self, source: str) -> list[Series]:
        """All series; `engine` is the data-parallel rank, `rank` the whole tag, `line` which kind of line it was."""
        out: list[Series] = []
        place = Place(source)
        for part, kind in ((self._decode, "decode"), (self._prefill, "prefill")):
            for (origin, rank), samples in part.of.items():
                data = next((tag[2:] for tag in rank.split() if tag.startswith("DP")), "0")
                labels = {"engine": data, "line": kind}
                labels |= ({"rank": rank} if rank else {}) | ({"replica": origin} if origin else {})
                out += samples.series(labels, place, self.context.clock)
        return out

    def said(self) -> list[str]:
        """What was thinned, and where the clock went back."""
        thinned = [*self._decode.said("decode", "rank"), *self._prefill.said("prefill", "rank")]
        return [*thinned, *dict.fromkeys([*self._decode.turned(), *self._prefill.turned()])]
