"""A gateway's canary from outside: its view, and an operator's commands to it."""

from __future__ import annotations

from typing import Any, Final

import aiohttp
import msgspec

from tailrace.measure.dialect import UNREADABLE
from tailrace.model.errors import InputError, TargetError

_TIMEOUT_S: Final = 5.0
_REMEDY: Final = "Give the address that `tailrace serve` prints as its admin port, as http://127.0.0.1:9480."


async def ask_canary(
    url: str, *, token: str = "", action: str = "", share: float | None = None, force: bool = False
) -> dict[str, Any]:
    """`GET /canary`, or `POST /canary` with `action`; what the gateway answers.

    InputError with the gateway's own words where it refuses; TargetError where nobody answers at `url`.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    place = f"{url.rstrip('/')}/canary"
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    body: dict[str, Any] = {"action": action}
    if share is not None:
        body["share"] = share
    if force:
        body["force"] = True
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout, trust_env=False) as session,
            session.request("POST" if action else "GET", place, json=body if action else None) as answer,
        ):
            said = await answer.read()
            status = answer.status
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise TargetError(
            f"the gateway's admin port does not answer: {error or type(error).__name__}",
            place=url,
            remedy=_REMEDY,
        ) from None
    try:
        value = msgspec.json.decode(said)
    except UNREADABLE:
        value = None
    if not isinstance(value, dict):
        raise TargetError(f"answered {status}, and no JSON: is this an admin port?", place=place)
    if status == 404:
        raise TargetError("this is no gateway's admin port: it has no canary to show", place=url, remedy=_REMEDY)
    if status >= 400:
        said_why = value.get("error")
        words = said_why if isinstance(said_why, dict) else {"message": f"answered {status}"}
        raise InputError(
            str(words.get("message", "")), place=str(words.get("place") or place), remedy=str(words.get("remedy") or "")
        )
    return value
