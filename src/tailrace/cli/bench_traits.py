"""`tailrace bench`: sessions, prefixes, leaving clients and recordings, from their options to a class's traits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tailrace.workload.traits import Traits


class TraitOptions(NamedTuple):
    """The options that every class of the short form has alike, as they were typed."""

    turns: str | None = None
    think: str | None = None
    conversations: bool = False
    shared_prefix: int = 0
    prefix_pool: int | None = None
    prefix_hit: float | None = None
    prefix_zipf: float = 0.0
    cancel: tuple[str, ...] = ()
    audio: str | None = None
    batch: int = 1

    def traits(self) -> Traits:
        """What they mean. Raises `InputError` for what cannot be read or contradicts itself."""
        from tailrace.model.errors import InputError
        from tailrace.workload.leave import check_leaves, parse_leave
        from tailrace.workload.length import parse_length
        from tailrace.workload.prefix import Prefixes
        from tailrace.workload.session import Sessions
        from tailrace.workload.span import parse_spans
        from tailrace.workload.traits import Traits

        sessions = None
        if self.conversations and self.turns is not None:
            raise InputError("conversations have their own turns", place="--turns", remedy="Leave one of the two out")
        if self.turns is not None or self.conversations:
            sessions = Sessions(
                turns=parse_length(self.turns or "1", place="--turns"),
                think=parse_spans(self.think or "0s", place="--think"),
            )
        elif self.think is not None:
            raise InputError("only sessions have pauses", place="--think", remedy="Add --turns, for example 3-8")
        leaves = [parse_leave(text) for text in self.cancel]
        check_leaves(leaves)
        prefixes = None
        if self.prefix_pool is not None or self.prefix_hit is not None:
            prefixes = Prefixes(
                pool=self.prefix_pool or 1,
                tokens=self.shared_prefix or None,
                hit=self.prefix_hit,
                zipf=self.prefix_zipf,
            )
        elif self.prefix_zipf:
            raise InputError("there is no pool of prefixes", place="--prefix-zipf", remedy="Add --prefix-pool 20")
        if self.batch < 1:
            raise InputError(f"must be at least 1, got {self.batch}", place="--batch")
        return Traits(
            sessions=sessions,
            leaves=leaves,
            prefixes=prefixes,
            audio=None if self.audio is None else parse_spans(self.audio, place="--audio", zero=False),
            batch=self.batch,
        )
