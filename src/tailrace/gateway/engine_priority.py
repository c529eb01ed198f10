"""A lane's priority, told to the engine in its own field and sign."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tailrace.engines.base import EngineAdapter
from tailrace.gateway.work import Work, with_fields
from tailrace.govern.lane import LanePolicy


class EnginePriority:
    """What each lane's priority is to an engine."""

    def __init__(self, policies: Sequence[LanePolicy]) -> None:
        self.apply(policies)

    def apply(self, policies: Sequence[LanePolicy]) -> None:
        """From the next request on."""
        levels = sorted({policy.priority for policy in policies})
        self._ranks = {policy.name: (policy.priority, levels.index(policy.priority)) for policy in policies}

    def add(
        self,
        body: bytes,
        work: Work,
        *,
        lane: str,
        path: str,
        adapter: EngineAdapter,
        named: dict[bytes, bytes],
        override: bool,
    ) -> bytes:
        """`body` with the priority of `lane`. A client's own stays, but with `override`."""
        number, level = self._ranks.get(lane, (0, 0))
        fields = adapter.priority_fields(path, level if adapter.priority_levels else number)
        if not fields or (not override and adapter.priority_header is not None and adapter.priority_header in named):
            return body
        if not any(b'"%b"' % name.encode() in body for name in fields):
            return with_fields(body, work, fields)
        return _merged(body, fields, override=override)


def _merged(body: bytes, fields: dict[str, Any], *, override: bool) -> bytes:
    """The words are there, in a prompt or as members: look, and keep the bytes of everything else."""
    whole: dict[str, Any] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    for name, value in fields.items():
        own = msgspec.json.decode(whole[name]) if name in whole else None
        if isinstance(own, dict) and isinstance(value, dict):
            if not override and value.keys() & own.keys():
                return body
            whole[name] = {**own, **value}
        elif own is not None and not override:
            return body
        else:
            whole[name] = value
    return msgspec.json.encode(whole)
