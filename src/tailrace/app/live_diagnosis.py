"""The diagnosis that a gateway makes of itself: every minute, when an alarm begins, and when somebody asks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic, time_ns
from typing import Any, Final

import msgspec

from tailrace.app.children import child_environment, die_with_parent
from tailrace.app.diagnosis_child import Question
from tailrace.diagnose.hardware import Hardware
from tailrace.diagnose.readers.happenings import events_of
from tailrace.gateway.config import Config, parse_objectives
from tailrace.gateway.served import Served
from tailrace.measure.dialect import UNREADABLE
from tailrace.model.engine_state import EngineState
from tailrace.model.errors import TailraceError
from tailrace.web.source import dropped_by_class

__all__ = ["LiveDiagnosis"]

log = logging.getLogger(__name__)

_CHILD: Final = "tailrace.app.diagnosis_child"
_HISTORY: Final = 64
_STATES: Final = 400
"""Readings of the engine that are kept: an hour and a half at the default 15 s."""
_LOOK_S: Final = 1.0
"""How soon a changed `diagnosis.every` is noticed."""


class LiveDiagnosis:
    """Asks a child process, one question at a time, and keeps what it said."""

    def __init__(
        self,
        served: Served,
        store_counters: Callable[[], dict[str, int]],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        """`flush` has every record that ended so far written to the data directory."""
        self._served = served
        self._store_counters = store_counters
        self._flush = flush
        self._turn = asyncio.Lock()
        self._latest: dict[str, Any] | None = None
        self._made_at = 0.0
        self._seen = -1
        self._history: deque[dict[str, Any]] = deque(maxlen=_HISTORY)
        self._states: deque[EngineState] = deque(maxlen=_STATES)
        self.made = 0
        self.failed = 0

    @property
    def _config(self) -> Config:
        return self._served.config

    def note_engine(self) -> None:
        """Keep the engine's last reading. Of several engines none: their counters do not add up."""
        if len(self._config.backends) != 1:
            self._states.clear()
            return
        state = self._served.engine.watch.latest
        if state is not None and (not self._states or self._states[-1].at_ns != state.at_ns):
            self._states.append(state)

    def latest(self) -> dict[str, Any] | None:
        """The last one that was made by itself, with its history.

        `None` where it is older than two periods and requests have ended since, or older than its window.
        """
        keys = self._config.diagnosis
        every = int(keys.every) / 1e9
        if self._latest is None or not every:
            return None
        age = monotonic() - self._made_at
        nothing_new = self._store_counters().get("acknowledged", 0) == self._seen and age <= int(keys.window) / 1e9
        if age > 2 * every and not nothing_new:
            return None
        return {**self._latest, "age_s": round(monotonic() - self._made_at, 1), "history": list(self._history)}

    async def run(self) -> None:
        """Diagnose every period in which requests have ended, until cancelled."""
        due = monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            every = int(self._config.diagnosis.every) / 1e9
            if not every or monotonic() < due + every:
                continue
            due = monotonic()
            acknowledged = self._store_counters().get("acknowledged", 0)
            if acknowledged != self._seen:
                try:
                    await self.of_window("period")
                except TailraceError:
                    pass  # it is counted, and said in `/diagnosis`
                except Exception:
                    log.exception("the diagnosis of the period could not be made")
                self._seen = acknowledged

    async def of_window(self, trigger: str) -> dict[str, Any]:
        """The diagnosis of the configured window, compared with what was before it. TailraceError: it was given up."""
        keys = self._config.diagnosis
        since = time_ns() - int(keys.window)
        before = since - int(keys.before) if int(keys.before) else None
        out = await self._ask(since, keys.requests, before)
        out.update(trigger=trigger, window_s=int(keys.window) / 1e9)
        self._latest, self._made_at = out, monotonic()
        first = next(iter(out["findings"]), None)
        self._history.append(
            {
                "at_unix_ms": out["at_unix_ms"],
                "trigger": trigger,
                "code": first["code"] if first else None,
                "level": first["level"] if first else None,
                "summary": out["summary"],
            }
        )
        return out

    async def asked(self, since: int | None, limit: int) -> dict[str, Any]:
        """What somebody asks for: the newest `limit` requests that began after `since` (Unix ns)."""
        return await self._ask(None if since is None else since + 1, limit, None)

    async def _ask(self, since: int | None, limit: int, before: int | None) -> dict[str, Any]:
        config = self._config
        timeout_s = int(config.diagnosis.timeout) / 1e9
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                await self._flush()
                events = events_of(await self._served.happenings())
                out = await self._child(self._question(config, since, limit, before, events))
        except (TimeoutError, OSError, *UNREADABLE) as error:
            self.failed += 1
            why = f"not within {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
            raise TailraceError(f"the diagnosis was given up: {why}") from None
        except TailraceError:
            self.failed += 1
            raise
        self.made += 1
        out["at_unix_ms"] = time_ns() // 1_000_000
        return out

    def _question(
        self, config: Config, since: int | None, limit: int, before: int | None, events: list[tuple[float, str]]
    ) -> Question:
        counters = self._store_counters()
        lost = sum(dropped_by_class(counters).values())
        seen = self._served.signals(None) or {}
        signals = {name: seen[name] for name in ("host", "gpus", "engine_pids", "absent") if name in seen}
        return Question(
            records=str(Path(config.records.dir).absolute()),
            since=since,
            before=before,
            requests=limit,
            objectives=parse_objectives(config.objectives),
            dropped=lost / max(1, lost + counters.get("acknowledged", 0)),
            hardware=Hardware(**signals),
            states=list(self._states),
            events=events,
        )

    @staticmethod
    async def _child(question: Question) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", _CHILD),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment(),
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        try:
            said, trouble = await process.communicate(msgspec.json.encode(question))
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode is not None and process.returncode < 0:
            raise TailraceError(
                f"the diagnosis was given up: its process was ended by signal {-process.returncode}"
                + (" (out of memory?)" if process.returncode == -signal.SIGKILL else "")
            )
        if process.returncode != 0:
            last = (trouble.decode(errors="replace").strip().splitlines() or ["no word"])[-1]
            last = last.removeprefix("tailrace.model.errors.").partition("Error: ")[2] or last  # a sentence of ours
            raise TailraceError(f"the diagnosis was given up: {last[:300]}")
        out: dict[str, Any] = msgspec.json.decode(said)
        return out
