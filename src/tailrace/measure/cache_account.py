"""The stages of a request for which no engine worked: its answer came from the cache, or from another in flight."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.measure.stage_account import StageAccount, Stamps, account_for
from tailrace.model.stage import QUEUE_GATEWAY, SourceKind, Stage, source


def account_from_cache(
    *, received: int, parsed: int | None, began: int | None, blocked: Sequence[tuple[int, int]], end: int
) -> StageAccount:
    """Stages that add up to `end - received`; stamps are absolute (ns), out of order they are moved to a neighbour.

    `ingress` up to `parsed`; then `queue.gateway`, the wait for the answer that another request is getting, up to
    `began`, the first byte of it; from there on `decode`, which is the other request's, and the source says so. The
    time in which the client took nothing is `response`. A hit begins when it is parsed: all the rest is `response`.
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
        sources[QUEUE_GATEWAY] = sources[str(Stage.QUEUE)] = source(SourceKind.MEASURED, "another request's answer")
    if first is None or first == end:
        return StageAccount(values, sources)
    held = account_for(Stamps(received=first, end=end), blocked=blocked).values.get(str(Stage.RESPONSE), 0)
    if waited:
        values[str(Stage.DECODE)] = end - first - held
        sources[str(Stage.DECODE)] = source(SourceKind.MEASURED, "another request's answer")
        if held:
            values[str(Stage.RESPONSE)] = held
            sources[str(Stage.RESPONSE)] = measured
        return StageAccount(values, sources)
    values[str(Stage.RESPONSE)] = end - first
    sources[str(Stage.RESPONSE)] = measured
    return StageAccount(values, sources)
