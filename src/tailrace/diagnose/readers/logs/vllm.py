"""vLLM's log: the load line of V1 and V0, steps, speculation, preemption, aborts, finished requests."""

from __future__ import annotations

import re
from typing import Final

from tailrace.diagnose.observed import Clock, Place, Series
from tailrace.diagnose.readers.logs.context import Context
from tailrace.diagnose.readers.logs.samples import Groups

__all__ = ["Vllm"]

_BEHIND: Final = b"%.\r\"'`|"
"""What may follow a number: its unit, a full stop, the end of a cell that the line was put into."""
MARK: Final = b"Avg prompt throughput: "
_NAN: Final = float("nan")

LOAD: Final = (
    "prompt_tok_s",
    "output_tok_s",
    "running",
    "waiting",
    "deferred",
    "swapped",
    "preemptions",
    "kv_usage",
    "cpu_kv_usage",
    "prefix_hit",
    "external_prefix_hit",
    "mm_hit",
    "encoder_cache_usage",
)
_SHARES: Final = frozenset(range(7, 13))
_KEYS: Final = {
    b"Avg prompt throughput": 0,
    b"Avg generation throughput": 1,
    b"Running": 2,
    b"Waiting": 3,
    b"Pending": 3,
    b"Deferred": 4,
    b"Swapped": 5,
    b"Preemptions": 6,
    b"GPU KV cache usage": 7,
    b"CPU KV cache usage": 8,
    b"Prefix cache hit rate": 9,
    b"Prefix cache hit rate: GPU": 9,
    b"External prefix cache hit rate": 10,
    b"MM cache hit rate": 11,
    b"Encoder cache usage": 12,
}
_KV_KEY: Final = b"KV cache usage"
_STEP: Final = re.compile(
    rb"Iteration\(\d+\): (\d+) context requests?, (\d+) context tokens?, (\d+) generation requests?, "
    rb"(\d+) generation tokens?, iteration elapsed time: ([\d.]+) ms(?:, \w+ KV cache usage: ([\d.]+)%)?"
)
STEPS: Final = ("step", "step_prefills", "step_prompt_tokens", "step_decodes", "kv_usage")
_SPECULATION: Final = re.compile(rb"Mean acceptance length: ([\d.]+)")
_DRAFT: Final = re.compile(rb"Avg [Dd]raft acceptance rate: ([\d.]+)%")
SPECULATION: Final = ("accept_length", "accept_share")
_PREEMPTED: Final = re.compile(
    rb"Sequence group (\S+) is preempted by (?:PreemptionMode\.)?(RECOMPUTE|SWAP)"
    rb"(?:.{0,400}?total_(?:num_)?cumulative_preemption(?:_cnt)?=(\d+))?"
)
_PREEMPTED_LOOSE: Final = re.compile(
    rb"(?:preempted by (?:PreemptionMode\.)?(RECOMPUTE|SWAP)|Preempting request)"
    rb"(?:.{0,400}?total_(?:num_)?cumulative_preemption(?:_cnt)?=(\d+))?"
)
_ABORTED: Final = re.compile(rb"Aborted request(?:\(s\)|s)?:? ([\w,. -]{1,400}?)\.?\s*$|Request (\S+) aborted\b")
_FINISHED: Final = re.compile(rb"Generated response (\S+?):? .*finish_reason: (\w+)|Finished request (\S+?)\.?$")


class Vllm:
    """What vLLM's lines say."""

    dialect = "vllm log"

    def __init__(self, context: Context) -> None:
        """`context` gets the events; the samples stay here until `series`."""
        self.context = context
        self._load = Groups(LOAD)
        self._steps = Groups(STEPS)
        self._speculation = Groups(SPECULATION)
        self._last_aborted = ""

    @staticmethod
    def _engine(text: bytes, end: int) -> str:
        at = text.rfind(b"Engine ", 0, end)
        if at < 0:
            return "0"
        digits = text[at + 7 : at + 11].split(b":", 1)[0]
        return str(int(digits)) if digits.isdigit() else "0"

    def load(self, text: bytes, at: int) -> bool:  # noqa: C901, PLR0912  (once a line: calls would cost)
        """The line with throughput, running, waiting and cache usage; `at` is where its first key stands.

        False where it is not whole: the rest may be on the next line.
        """
        values = [_NAN] * len(LOAD)
        gpu = False
        for part in text[at:].split(b", "):
            key, _, said = part.rpartition(b": ")
            place = _KEYS.get(key)
            if place is None:
                if key.endswith(_KV_KEY):
                    place = 7
                else:
                    if key and len(self.context.unknown_keys) < 50:
                        name = key.decode("utf-8", "replace")[:60]
                        self.context.unknown_keys[name] = self.context.unknown_keys.get(name, 0) + 1
                    continue
            try:
                value = float(said.split(b" ", 1)[0].rstrip(_BEHIND))
            except ValueError:
                if said[:3] != b"n/a":
                    return False
                continue
            if place in _SHARES:
                value /= 100.0
                if not 0.0 <= value <= 1.0:
                    self.context.rejected += 1
                    continue
                if place == 7:
                    gpu = True
            elif value < 0:
                self.context.rejected += 1
                continue
            values[place] = value
        # NaN is not itself: without these the line was cut.
        if values[2] != values[2] or values[1] != values[1]:
            return False
        if not gpu:
            # A build for CPUs calls its only cache so; beside a GPU's it is the swap space.
            values[7], values[8] = values[8], _NAN
            if values[7] != values[7]:
                return False
        stamp = self.context.stamp(text, at)
        if stamp is None:
            when = _NAN
        else:
            when, self.context.clock = stamp
        self._load.add((self.context.origin, self._engine(text, at)), (when, self.context.number, *values))
        return self.context.understood(self.dialect)

    def step(self, text: bytes) -> bool:
        """A line of one step (`--enable-logging-iteration-details`)."""
        found = _STEP.search(text)
        if found is None:
            return False
        prefills, prompt, decodes, _, elapsed, kv = found.groups()
        stamp = self.context.stamp(text, found.start())
        when, clock = stamp or (_NAN, Clock.NONE)
        if clock is not Clock.NONE:
            self.context.clock = clock
        usage = float(kv) / 100.0 if kv else _NAN
        row = (when, self.context.number, float(elapsed), float(prefills), float(prompt), float(decodes), usage)
        self._steps.add((self.context.origin, self._engine(text, found.start())), row)
        return self.context.understood(self.dialect)

    def speculation(self, text: bytes) -> bool:
        """`SpecDecoding metrics: …`."""
        length, share = _SPECULATION.search(text), _DRAFT.search(text)
        if length is None and share is None:
            return False
        when, _ = self.context.stamp(text) or (_NAN, Clock.NONE)
        row = (
            when,
            self.context.number,
            float(length[1]) if length else _NAN,
            float(share[1]) / 100.0 if share else _NAN,
        )
        self._speculation.add((self.context.origin, self._engine(text, len(text))), row)
        return self.context.understood(self.dialect)

    def preempted(self, text: bytes) -> bool:
        """V0's warning, with the count since the start where it is given."""
        found = _PREEMPTED.search(text)
        attributes: dict[str, float | str] = {}
        if found is not None:
            attributes["group"], attributes["mode"] = found[1].decode("utf-8", "replace"), found[2].decode().lower()
            total = found[3]
        else:
            found = _PREEMPTED_LOOSE.search(text)
            if found is None:
                return False
            if found[1]:
                attributes["mode"] = found[1].decode().lower()
            total = found[2]
        if total:
            attributes["cumulative"] = float(total)
        self.context.events.add("preempted", self.context.number, self.context.stamp(text), text, attributes)
        return self.context.understood(self.dialect)

    def aborted(self, text: bytes) -> bool:
        """A request that its client left."""
        found = _ABORTED.search(text)
        if found is None:
            return False
        ids = (found[1] or found[2]).decode("utf-8", "replace").strip()
        # The API server says it again of each request that the engine has let go.
        if found[2] is None or not self._last_aborted.startswith(ids):
            stamp = self.context.stamp(text)
            self.context.events.add("aborted", self.context.number, stamp, text, {"id": ids[:120]})
        self._last_aborted = ids
        return self.context.understood(self.dialect)

    def finished(self, text: bytes) -> bool:
        """A request that came to its end (with request logging on)."""
        found = _FINISHED.search(text)
        if found is None:
            return False
        reason = (found[2] or b"").decode("utf-8", "replace")
        if reason != "None":
            name = (found[1] or found[3]).decode("utf-8", "replace")[:120]
            attributes: dict[str, float | str] = {"id": name, "reason": reason}
            self.context.events.add("finished", self.context.number, self.context.stamp(text), name, attributes)
        return self.context.understood(self.dialect)

    def series(self, source: str) -> list[Series]:
        """All series, with `engine` (the number in the line), `replica` where containers are told apart."""
        out: list[Series] = []
        place = Place(source)
        for part, kind in ((self._load, "load"), (self._steps, "step"), (self._speculation, "speculation")):
            for (origin, engine), samples in part.of.items():
                labels = {"engine": engine, "line": kind} | ({"replica": origin} if origin else {})
                out += samples.series(labels, place, self.context.clock)
        return out

    def said(self) -> list[str]:
        """What was thinned, and where the clock went back."""
        thinned = [*self._load.said("load", "engine"), *self._steps.said("step", "engine")]
        return [*thinned, *dict.fromkeys([*self._load.turned(), *self._steps.turned()])]
