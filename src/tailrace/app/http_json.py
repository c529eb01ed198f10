"""One JSON call to a control endpoint, for compositions."""

from __future__ import annotations

from typing import Any, Final

import aiohttp

from tailrace.model.errors import TargetError

_TIMEOUT_S: Final = 5.0
"""Control endpoints answer from memory; a longer wait means that the process is stuck."""


async def post_json(url: str, body: object) -> Any:
    """POST `body`; the parsed answer. Raises `TargetError` with the server's own words when it refuses."""
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url, json=body) as answer:
            if answer.status >= 400:
                words = (await answer.text())[:300]
                raise TargetError(f"answered {answer.status}: {words}", place=url)
            return await answer.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise TargetError(f"does not answer: {error}", place=url) from None
