"""`tailrace bench`: whom to ask, from its options to headers and bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.cli.durations import parse_span

if TYPE_CHECKING:
    from tailrace.probe.spec import Limits


class Server(NamedTuple):
    """The URL and the options under `Whom to ask`, as they were typed."""

    url: str
    model: str | None
    api_key: str
    header: list[str]
    timeout: str
    first_token_timeout: str | None
    idle_timeout: str | None
    connect_timeout: str
    connections: str
    insecure: bool
    metrics_url: str
    scrape_every: str

    def scrape_ns(self) -> int:
        """How often the engine's metrics are read; 0: never."""
        return parse_span(self.scrape_every, place="--scrape-every") if self.scrape_every.strip("0.s ") else 0

    def limits(self) -> Limits:
        """The longest that the client waits."""
        from tailrace.probe.spec import Limits

        return Limits(
            connect_ns=parse_span(self.connect_timeout, place="--connect-timeout"),
            first_token_ns=_optional_ns(self.first_token_timeout, "--first-token-timeout"),
            idle_ns=_optional_ns(self.idle_timeout, "--idle-timeout"),
            total_ns=parse_span(self.timeout, place="--timeout"),
        )

    def new_connections(self) -> bool:
        """Whether each request gets a connection of its own."""
        from tailrace.model.errors import InputError

        if self.connections not in ("reuse", "new"):
            raise InputError(f"cannot read {self.connections!r}", place="--connections", remedy="Write reuse, or new")
        return self.connections == "new"

    def headers(self) -> list[tuple[str, str]]:
        """Names and values. Raises `InputError` for one without a colon."""
        return [_header(one) for one in self.header]


def _optional_ns(text: str | None, place: str) -> int | None:
    return None if text is None else parse_span(text, place=place)


def _header(text: str) -> tuple[str, str]:
    from tailrace.model.errors import InputError

    name, colon, value = text.partition(":")
    if not colon:
        raise InputError(f"cannot read {text!r}", place="--header", remedy="Write 'name: value'")
    return name.strip(), value.strip()
