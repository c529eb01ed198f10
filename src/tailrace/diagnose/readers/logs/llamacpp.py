"""llama.cpp's server log: the timings that a slot prints at the end of a request, its launch and release, cancels.

    slot print_timing: id  0 | task 388 |
    prompt eval time =     789.03 ms /    27 tokens (   29.22 ms per token,    34.22 tokens per second)
           eval time =   16112.50 ms /   192 tokens (   83.92 ms per token,    11.92 tokens per second)
          total time =   16901.53 ms /   219 tokens

Newer versions print the numbers on the line of the slot, older ones an object in JSON. There is no queue time in any of
them: a request that waits for a slot is not logged while it waits.
"""

from __future__ import annotations

import re
from typing import Final

from tailrace.diagnose.observed import Clock, Rows
from tailrace.diagnose.readers.logs.accesses import Access
from tailrace.diagnose.readers.logs.context import Context
from tailrace.diagnose.readers.logs.request_table import RequestTable

__all__ = ["LlamaCpp"]

_TIMING: Final = re.compile(
    rb"(prompt eval|generation eval|(?<!prompt )(?<!generation )eval|total) time"
    rb"\s*=\s*([\d.]+) ms(?: /\s*(\d+) (?:tokens|runs))?"
)
_SLOT: Final = re.compile(rb"slot +\w+: id +(\d+) \| task (-?\d+) \|")
_SINCE: Final = re.compile(rb"(?:^|[\] ])(\d+)\.(\d\d)\.(\d{3})\.(\d{3}) [A-Z] ")
_PROMPT: Final = re.compile(rb"(?:n_prompt_tokens|task\.n_tokens) = (\d+)")
_ALIKE: Final = re.compile(rb"selected slot by (?:LCP|lcp) similarity, (?:sim_best|similarity) = ([\d.]+)")
_PROGRESS: Final = re.compile(rb"prompt processing(?: progress)?, .*?n_tokens = +(\d+)")
_REQUEST: Final = re.compile(rb"(?:done )?request: (GET|POST|PUT|DELETE|OPTIONS|HEAD) (\S+) (\S+) (\d{3})")


class LlamaCpp:
    """What a llama.cpp server's lines say."""

    dialect = "llama.cpp log"

    def __init__(self, context: Context) -> None:
        """`context` gets the events."""
        self.context = context
        self.requests = RequestTable(context.source)
        self._open: dict[str, float | str] = {}
        self._line = 0
        self._prompts: dict[tuple[str, str], float] = {}
        self._alike: dict[str, float] = {}
        """Slot -> how much of the last prompt that chose it was in it already (0..1)."""

    def line(self, text: bytes) -> bool:
        """Any line of the server; False where it is none that is known."""
        slot = _SLOT.search(text)
        if b" time" in text and self._timing(text, slot):
            return self.context.understood(self.dialect)
        if slot is not None:
            self._slot(text, slot)
            return self.context.understood(self.dialect)
        asked = _REQUEST.search(text)
        if asked is not None:
            method, path, _, status = asked.groups()
            row = Access(
                line=self.context.number,
                method=method.decode(),
                path=path.decode("utf-8", "replace"),
                status=float(status),
            )
            self.context.accesses.add(row)
            return self.context.understood(self.dialect)
        if b"srv " in text or b"que " in text or b"main: " in text or b"print_info: " in text or b"llama_" in text:
            if b"failed to find free space in the KV cache" in text or b"failed to find a memory slot" in text:
                self.context.events.add("kv_full", self.context.number, self._stamp(text), text)
            elif b"cancel" in text:
                self.context.events.add("aborted", self.context.number, self._stamp(text), text)
            return self.context.understood(self.dialect)
        return False

    def _stamp(self, text: bytes) -> tuple[float, Clock] | None:
        """A collector's or a journal's stamp, else the server's own count since its start."""
        outer = self.context.stamp(text, 60)
        if outer is not None:
            return outer
        found = _SINCE.search(text, 0, 60)
        if found is None:
            return None
        minutes, seconds, milli, micro = (int(part) for part in found.groups())
        return minutes * 60 + seconds + milli / 1e3 + micro / 1e6, Clock.RELATIVE

    def _timing(self, text: bytes, slot: re.Match[bytes] | None) -> bool:
        found = list(_TIMING.finditer(text))
        if not found:
            return False
        for one in found:
            kind, took, count = one[1], float(one[2]), one[3]
            if kind == b"prompt eval":
                self.end()
                self._line = self.context.number
                self._open |= {"prefill": took}
                if count:
                    self._open["prompt_tokens"] = float(count)
            elif kind == b"total":
                self._open["e2e"] = took
                self.end()
                continue
            else:
                self._open["decode"] = took
                if count:
                    tokens = float(count)
                    self._open["output_tokens"] = tokens
                    # The first token comes with the prompt: its time is not in here.
                    if tokens > 1:
                        self._open["tpot"] = took / (tokens - 1)
            self._line = self._line or self.context.number
            if slot is not None:
                self._open["slot"], self._open["task"] = slot[1].decode(), slot[2].decode()
        return True

    def _slot(self, text: bytes, slot: re.Match[bytes]) -> None:
        key = (slot[1].decode(), slot[2].decode())
        if b"print_timing" in text:
            if _PROGRESS.search(text) is None:
                self.end()
                self._open["slot"], self._open["task"] = key
                self._line = self.context.number
        elif b"new prompt" in text:
            self._asked(text, key)
        elif b"launch_slot_" in text and b"processing task" in text:
            self.context.events.add("launched", self.context.number, self._stamp(text), text, {"slot": key[0]})
        elif b"release" in text:
            self.context.events.add("released", self.context.number, self._stamp(text), text, {"slot": key[0]})
        elif b"forcing full prompt re-processing" in text:
            self._cache_lost(text, key)
        else:
            alike = _ALIKE.search(text)
            if alike is not None:
                self._alike[key[0]] = min(float(alike[1]), 1.0)

    def _asked(self, text: bytes, key: tuple[str, str]) -> None:
        told = _PROMPT.search(text)
        if told is not None:
            if len(self._prompts) > 4096:
                self._prompts.clear()
            self._prompts[key] = float(told[1])

    def _cache_lost(self, text: bytes, key: tuple[str, str]) -> None:
        said: dict[str, float | str] = {"slot": key[0], "task": key[1]}
        if key[0] in self._alike:
            said["alike"] = self._alike[key[0]]
        self.context.events.add("prompt_cache_lost", self.context.number, self._stamp(text), text, said)

    def end(self) -> None:
        """The request in hand is whole."""
        if "prefill" in self._open or "decode" in self._open:
            total = self._prompts.get((str(self._open.get("slot")), str(self._open.get("task"))))
            if total is not None and "prompt_tokens" in self._open:
                # Beside the timing stands what was computed; the rest of the prompt came from the slot's cache.
                self._open["cached_tokens"] = max(total - float(self._open["prompt_tokens"]), 0.0)
            self.requests.add(self._line, self._open)
            self._open = {}
        elif "e2e" in self._open:
            self._open = {}
        self._line = 0

    def table(self) -> Rows | None:
        """All requests."""
        self.end()
        return self.requests.table()
