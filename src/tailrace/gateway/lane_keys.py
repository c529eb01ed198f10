"""The configuration's keys for classification and for what lanes share, and their checks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from tailrace.gateway.config_values import Duration, Section, lasting
from tailrace.govern.adaptive_limit import AdaptiveLimitPolicy
from tailrace.govern.engine_room import EngineRoomPolicy
from tailrace.govern.lane import LaneMatch
from tailrace.govern.sharing import Between, Sharing
from tailrace.model.errors import ConfigError
from tailrace.model.thresholds import S

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_HEADER: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")


class KeyConfig(Section):
    """One API key of a client, by a name that records and views show instead of it. One of `value`, `env`, `sha256`."""

    value: str | None = None
    """The key itself."""
    env: str | None = None
    """The environment variable that holds it."""
    sha256: str | None = None
    """Its SHA-256 in hexadecimal, so that the file holds no secret: `printf %s KEY | sha256sum`."""
    tenant: str | None = None
    """Who pays; default: the key's name. Several keys may belong to one tenant."""
    lanes: list[str] = msgspec.field(default_factory=list)
    """Lanes that it may ask for by `x-lane`."""


class TenantConfig(Section):
    """One tenant, where it is not like all others."""

    weight: float = 1.0
    """Its part of every lane, in tokens: one of weight 2 gets twice that of one of weight 1, while both wait."""


class SharingConfig(Section):
    """What all lanes share beside `total_running`, and how they take turns at it. Limits are per worker's part where
    there are several workers.
    """

    between_lanes: Literal["strict", "weighted"] = "strict"
    """`strict`: by `priority`; `weighted`: tokens by the lanes' `weight`."""
    ageing: Duration | None = None
    """strict: who waits one of these longer counts one step of priority higher (default 1s). weighted: a lane's weight
    counts double after it (default 60s)."""
    tokens: int | None = None
    """Prompt and predicted output of all that run."""
    kv_tokens: int | None = None
    """What they may come to hold in the KV cache."""
    prefill_requests: int | None = None
    """Requests whose first token has not come."""
    prefill_tokens: int | None = None
    """Their prompts."""


class EngineRoomConfig(Section):
    """A limit that follows what the engine says of itself. Absent metrics, and old ones, count as a full engine."""

    max_waiting: int | None = 4
    """No room while more than this wait in the engine's own queue."""
    max_kv_usage: float | None = 0.9
    """No room while more than this share of the KV blocks is in use."""
    stale: Duration = lasting(5 * S)
    """A reading older than this counts as a full engine."""

    def resolve(self) -> EngineRoomPolicy:
        """As the governor reads it."""
        return EngineRoomPolicy(max_waiting=self.max_waiting, max_kv_usage=self.max_kv_usage, stale_ns=int(self.stale))


class AdaptiveConfig(Section):
    """A running limit that moves: larger while many short ones wait, within the objective for time per token."""

    minimum: int = 1
    start: int | None = None
    """Default: the lane's `running`, which is also its largest."""
    tpot: Duration | None = None
    """The time per output token to keep; default: the lane's `tpot` objective."""
    quantile: float = 0.9
    """By so many of the requests."""
    step: Duration = lasting(1 * S)
    """The shortest time between two changes."""

    def resolve(self, running: int, tpot_ns: int) -> AdaptiveLimitPolicy:
        """As the governor reads it, for a lane of `running` places with this objective (ns)."""
        return AdaptiveLimitPolicy(
            minimum=min(self.minimum, running),
            maximum=running,
            start=self.start,
            tpot_ns=tpot_ns if self.tpot is None else int(self.tpot),
            quantile=self.quantile,
            step_ns=int(self.step),
        )


def sharing_of(section: SharingConfig, tenants: Mapping[str, TenantConfig]) -> Sharing:
    """As the governor reads it."""
    return Sharing(
        running_tokens=section.tokens,
        running_kv_tokens=section.kv_tokens,
        prefill_requests=section.prefill_requests,
        prefill_tokens=section.prefill_tokens,
        between=Between(section.between_lanes),
        ageing_ns=None if section.ageing is None else int(section.ageing),
        tenant_weights={name: tenant.weight for name, tenant in tenants.items()},
    )


def key_of(key: KeyConfig, *, place: str) -> str | None:
    """The key's text; `None` where only its digest is known. ConfigError where it is nowhere."""
    if key.env is None:
        return key.value
    found = os.environ.get(key.env)
    if not found:
        raise ConfigError(
            f"the environment has no {key.env}", place=f"{place}.env", remedy=f"Set {key.env} before the start."
        )
    return found


def check_keys(keys: Mapping[str, KeyConfig], lanes: Iterable[str], *, require: bool, where: str) -> None:
    """Refuse keys that nobody could present, and lanes that are not there. Raises `ConfigError`."""
    known = set(lanes)
    texts: dict[str, str] = {}
    for name, key in keys.items():
        place = f"{where}: keys.{name}"
        if sum(way is not None for way in (key.value, key.env, key.sha256)) != 1:
            raise ConfigError(
                "one of value, env and sha256 says what the key is",
                place=place,
                remedy="Write exactly one of them; sha256 keeps the secret out of the file.",
            )
        if key.sha256 is not None and not _SHA256.fullmatch(key.sha256):
            raise ConfigError(
                "is no SHA-256", place=f"{place}.sha256", remedy="Write the 64 digits of `printf %s KEY | sha256sum`."
            )
        text = key_of(key, place=place)
        if text is not None and not (text and text.isascii() and text.isprintable() and " " not in text):
            raise ConfigError(
                "the key is empty, or has a character that no header can carry",
                place=place,
                remedy="Copy the key again, without what follows it.",
            )
        if text is not None and text in texts:
            raise ConfigError(
                f"is the same key as {texts[text]!r}", place=place, remedy="Give each client its own, or drop one."
            )
        if text is not None:
            texts[text] = name
        for lane in key.lanes:
            if lane not in known:
                raise ConfigError(
                    f"there is no lane {lane!r}",
                    place=f"{place}.lanes",
                    remedy=f"The lanes are {', '.join(sorted(known))}.",
                )
    if require and not keys:
        raise ConfigError(
            "nobody could come in: there are no keys",
            place=f"{where}: require_key",
            remedy="Add `keys`, or leave `require_key` out.",
        )


def check_match(match: LaneMatch, *, place: str) -> None:
    """Refuse a header that no request can bring: its lane would never match. Raises `ConfigError`."""
    for name, value in match.header.items():
        if not _HEADER.fullmatch(name.lower()):
            raise ConfigError(
                f"{name!r} is no header's name",
                place=f"{place}.match.header",
                remedy="Write it as in `x-size: big`.",
            )
        if not value.isprintable() or value != value.strip():
            raise ConfigError(
                f"no request can bring the value {value!r}",
                place=f"{place}.match.header.{name}",
                remedy="Leave out white space at its ends, and what is not printable.",
            )


def check_sharing(
    section: SharingConfig, tenants: Mapping[str, TenantConfig], tenant_header: str | None, *, where: str
) -> None:
    """Refuse limits that let nobody through, and weights that give nobody anything. Raises `ConfigError`."""
    for name in ("tokens", "kv_tokens", "prefill_requests", "prefill_tokens"):
        at_least_one(getattr(section, name), place=f"{where}: sharing.{name}")
    if section.ageing is not None and section.ageing < 1:
        raise ConfigError(
            "without ageing a low lane would starve",
            place=f"{where}: sharing.ageing",
            remedy="Write a time above 0; leave the key out for the default.",
        )
    for name, tenant in tenants.items():
        check_weight(tenant.weight, place=f"{where}: tenants.{name}.weight")
    if tenant_header is not None and not _HEADER.fullmatch(tenant_header.lower()):
        raise ConfigError(
            f"{tenant_header!r} is no header's name",
            place=f"{where}: tenant_header",
            remedy="Write the header that names the tenant, for example x-tenant.",
        )


def check_engine_room(section: EngineRoomConfig | None, *, where: str) -> None:
    """Refuse bounds that no engine is ever within. Raises `ConfigError`."""
    if section is None:
        return
    usage = section.max_kv_usage
    if usage is not None and not 0.0 < usage <= 1.0:
        raise ConfigError(
            f"{usage} is no share of the KV cache",
            place=f"{where}: engine_room.max_kv_usage",
            remedy="Write a number above 0, at most 1; `null` does not look at it.",
        )
    if section.max_waiting is not None and section.max_waiting < 0:
        raise ConfigError(
            f"{section.max_waiting} cannot wait",
            place=f"{where}: engine_room.max_waiting",
            remedy="Write a number from 0; `null` does not look at it.",
        )


def at_least_one(value: int | None, *, place: str) -> None:
    """Refuse a limit that lets nobody through. Raises `ConfigError`."""
    if value is not None and value < 1:
        raise ConfigError(
            f"{value} lets nobody through", place=place, remedy="Write at least 1; leave the key out for no limit."
        )


def check_weight(weight: float, *, place: str) -> None:
    """Refuse a weight that gives nothing, or everything. Raises `ConfigError`."""
    if not 0.001 <= weight <= 1000:
        raise ConfigError(
            f"{weight} is no weight",
            place=place,
            remedy="Write a number from 0.001 to 1000: parts are in proportion to it.",
        )
