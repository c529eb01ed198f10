"""The stages of a request for which no engine worked: its answer came from the cache, or from another in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tailrace.measure.stage_account import StageAccount, Stamps, account_for
from tailrace.model.stage import QUEUE_GATEWAY, SourceKind, Stage, source

_WAITED_FOR: Final = {"shared": "another request's answer", "semantic": "embedding of the question"}


def account_from_cache(
    cache: str, *, received: int, parsed: int | None, began: int | None, blocked: Sequence[tuple[int, int]], end: int
) -> StageAccount:
    """Stages that add up to `end - received`; stamps are absolute (ns), out of order they are moved to a neighbour.

    `ingress` up to `parsed`; then `queue.gateway`, the wait for what `cache` says (the record's field), up to `began`,
    the first byte of the answer. What follows is `response`; of a shared answer only the time in which the client took
    nothing, the rest is the other request's `decode`. A hit begins when it is parsed.
    """
    measured = source(SourceKind.MEASURED)
    end = max(end, received)
    read = min(max(parsed or received, received), end)
    first = None if began is None else min(max(began, read), end)
    values: dict[str, int] = {str(Stage.INGRESS): read - received}
    sources = {str(Stage.INGRESS): measured}
    waited = (end if first is None else first) - read
    if waited:
        values[QUEUE_GATEWAY] = values[str(Stage.QUEUE)] = waited
        sources[QUEUE_GATEWAY] = sources[str(Stage.QUEUE)] = source(SourceKind.MEASURED, _WAITED_FOR.get(cache, cache))
    if first is None or first == end:
        return StageAccount(values, sources)
    if cache != "shared":
        values[str(Stage.RESPONSE)] = end - first
        sources[str(Stage.RESPONSE)] = measured
        return StageAccount(values, sources)
    held = account_for(Stamps(received=first, end=end), blocked=blocked).values.get(str(Stage.RESPONSE), 0)
    values[str(Stage.DECODE)] = end - first - held
    sources[str(Stage.DECODE)] = source(SourceKind.MEASURED, _WAITED_FOR[cache])
    if held:
        values[str(Stage.RESPONSE)] = held
        sources[str(Stage.RESPONSE)] = measured
    return StageAccount(values, sources)
