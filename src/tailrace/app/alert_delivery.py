"""Alerts on their way to the receivers: a bounded line for each, some tries, and a count of what became of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

import aiohttp
import msgspec

from tailrace.export.alert_payloads import Said, alertmanager, slack, tailrace_form
from tailrace.gateway.alert_keys import ReceiverConfig
from tailrace.govern.burn_rate import State

__all__ = ["Delivery"]

_LINE: Final = 1000
"""Messages that wait for one receiver; then the oldest makes room and is counted as dropped. Alarms of many lanes begin
in the same look: all of them must find room before the first is sent."""
_PAUSES_S: Final = (1.0, 5.0, 25.0)
"""Between the tries: a receiver that restarts is back within half a minute."""
_LONGEST_ERROR: Final = 200
_FORMS: Final = {"tailrace": tailrace_form, "alertmanager": alertmanager, "slack": slack}


class Delivery:
    """One receiver. Nobody waits for it."""

    def __init__(self, receiver: ReceiverConfig) -> None:
        self.receiver = receiver
        self.counts: Counter[str] = Counter()
        """`delivered`, `failed`, `dropped` -> messages."""
        self.error = ""
        """Why the last try failed; empty when it did not."""
        self._line: dict[tuple[str, State], Said] = {}
        """What waits, oldest first: of each alert its newest word, and what came before only where that is the other
        one (it fired, it is over)."""
        self._some = asyncio.Event()

    def offer(self, said: Said) -> None:
        """Take a message, if it is for this receiver."""
        wanted = self.receiver.severities
        if wanted is not None and said.alert.severity not in wanted:
            return
        key, state = said.alert.key, said.alert.state
        other = State.FIRING if state is State.RESOLVED else State.RESOLVED
        if (key, state) in self._line:
            if (key, other) not in self._line:
                self._line[key, state] = said  # said again, while nobody has heard it: in the same place
                return
            # It came and went and came again while nobody listened: what counts is how it is now.
            del self._line[key, state], self._line[key, other]
        elif len(self._line) >= _LINE:
            del self._line[next(iter(self._line))]
            self.counts["dropped"] += 1
        self._line[key, state] = said
        self._some.set()

    async def run(self) -> None:
        """Send what comes, one after the other, until cancelled."""
        timeout = aiohttp.ClientTimeout(total=int(self.receiver.timeout) / 1e9)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                said = await self._next()
                for pause_s in (*_PAUSES_S, None):
                    self.error = await self._try(session, said)
                    if not self.error:
                        self.counts["delivered"] += 1
                        break
                    if pause_s is None:
                        self.counts["failed"] += 1
                        break
                    await asyncio.sleep(pause_s)

    async def _next(self) -> Said:
        await self._some.wait()
        said = self._line.pop(next(iter(self._line)))
        if not self._line:
            self._some.clear()
        return said

    async def _try(self, session: aiohttp.ClientSession, said: Said) -> str:
        headers = {"Content-Type": "application/json"}
        if self.receiver.token:
            headers["Authorization"] = f"Bearer {self.receiver.token}"
        try:
            body = msgspec.json.encode(_FORMS[self.receiver.form](said))
            # A redirect would carry the token to whoever is named there.
            async with session.post(self.receiver.url, data=body, headers=headers, allow_redirects=False) as answer:
                return "" if answer.status < 300 else f"it answers {answer.status}"
        except Exception as error:  # noqa: BLE001  (an address or a token that no library takes must not end the sending)
            return self._words(error)

    def _words(self, error: Exception) -> str:
        """One short line. What answered may be no HTTP, its words any length, and aiohttp repeats the address, whose
        path is a webhook's password.
        """
        text = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
        line = " ".join(text.split("\n\n", 1)[0].split()) or type(error).__name__
        return line.replace(self.receiver.url, self._address)[:_LONGEST_ERROR]

    @property
    def _address(self) -> str:
        return "/".join(self.receiver.url.split("/", 3)[:3])

    def view(self) -> dict[str, Any]:
        """For `GET /alerts`; the address without its path, which is a webhook's password."""
        return {
            "receiver": self._address,
            "form": self.receiver.form,
            "waiting": len(self._line),
            **{name: self.counts[name] for name in ("delivered", "failed", "dropped")},
            "error": self.error,
        }
