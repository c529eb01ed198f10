"""Alerts on their way to the receivers: a bounded line for each, some tries, and a count of what became of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

import aiohttp
import msgspec

from tailrace.export.alert_payloads import Said, alertmanager, slack, tailrace_form
from tailrace.gateway.alert_keys import ReceiverConfig

__all__ = ["Delivery"]

_LINE: Final = 100
"""Messages that wait for one receiver; then the oldest makes room and is counted as dropped."""
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
        self._line: asyncio.Queue[Said] = asyncio.Queue(_LINE)

    def offer(self, said: Said) -> None:
        """Take a message, if it is for this receiver."""
        wanted = self.receiver.severities
        if wanted is not None and said.alert.severity not in wanted:
            return
        if self._line.full():
            self._line.get_nowait()
            self.counts["dropped"] += 1
        self._line.put_nowait(said)

    async def run(self) -> None:
        """Send what comes, one after the other, until cancelled."""
        timeout = aiohttp.ClientTimeout(total=int(self.receiver.timeout) / 1e9)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                said = await self._line.get()
                for pause_s in (*_PAUSES_S, None):
                    self.error = await self._try(session, said)
                    if not self.error:
                        self.counts["delivered"] += 1
                        break
                    if pause_s is None:
                        self.counts["failed"] += 1
                        break
                    await asyncio.sleep(pause_s)

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
            "waiting": self._line.qsize(),
            **{name: self.counts[name] for name in ("delivered", "failed", "dropped")},
            "error": self.error,
        }
