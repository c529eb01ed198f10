"""How a class of requests is asked, where it differs from the rest of the run."""

from __future__ import annotations

from typing import Any

import msgspec


class Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of a class's requests; `None` and empty ones are the run's own."""

    endpoint: str = ""
    """An API by its short name (`chat`, `embeddings`, ...) or a path that begins with `/`."""
    model: str | None = None
    stream: bool | None = None
    natural: bool | None = None
    """Whether answers end where the model ends them."""
    extra_body: dict[str, Any] = {}
    """Merged into the bodies of the class after the run's own."""

    @property
    def plain(self) -> bool:
        """Whether it is the run's own way of asking."""
        return self == _PLAIN


_PLAIN = Call()
