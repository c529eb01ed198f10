"""Who asks: the API key that a request presents, by the name that the configuration gives it, and its tenant."""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Final

import msgspec

from tailrace.gateway.config import Config
from tailrace.gateway.lane_keys import key_of
from tailrace.gateway.refusal import Refusal
from tailrace.model.outcome import Reason

_MAX_TENANT: Final = 200
_BEARER: Final = b"bearer "


class Caller(msgspec.Struct, frozen=True):
    """What is known of whoever sent a request. Never the key itself."""

    key: str = ""
    """The key's name; empty where none of ours was presented."""
    tenant: str = ""
    lanes: frozenset[str] = frozenset()
    """Lanes that it may ask for."""


NOBODY: Final = Caller()


class Callers:
    """The configured keys. A key is looked up by its digest and compared in constant time."""

    def __init__(self, config: Config) -> None:
        self.apply(config)

    def apply(self, config: Config) -> None:
        """From the next request on."""
        self._keys: dict[bytes, tuple[bytes, Caller]] = {}
        for name, key in config.keys.items():
            text = key_of(key, place=f"keys.{name}")
            digest = sha256(text.encode()).digest() if text is not None else bytes.fromhex(key.sha256 or "")
            caller = Caller(name, name if key.tenant is None else key.tenant, frozenset(key.lanes))
            # By a part of the digest: where that leads tells nothing of the key, and the rest is compared in full.
            self._keys[digest[:8]] = (digest, caller)
        self.header = None if config.tenant_header is None else config.tenant_header.lower().encode()
        """The header that names tenants."""
        self._require = config.require_key
        self.scoped = bool(config.keys)
        """Whether `x-lane` is only for keys that may ask for a lane."""

    @property
    def idle(self) -> bool:
        """Whether nothing is configured that would tell one caller from another."""
        return not self._keys and self.header is None

    def find(self, named: dict[bytes, bytes]) -> Caller:
        """Who sent a request with these headers."""
        caller = NOBODY
        if self._keys:
            presented = _presented(named)
            if presented:
                digest = sha256(presented).digest()
                known, found = self._keys.get(digest[:8], (b"", NOBODY))
                if hmac.compare_digest(digest, known):
                    caller = found
        if self.header is not None and not caller.tenant:
            tenant = named.get(self.header, b"")[:_MAX_TENANT].decode("latin-1")
            if tenant:
                return Caller(caller.key, tenant, caller.lanes)
        return caller

    def ours(self, named: dict[bytes, bytes]) -> bool:
        """Whether the key that a request presents is one of the configured."""
        return bool(self._keys) and bool(self.find(named).key)

    def turned_away(self, named: dict[bytes, bytes]) -> Refusal | None:
        """Why a request with these headers is not let in; `None` where it is."""
        if not self._require or self.find(named).key:
            return None
        text = (
            "an API key is needed: `Authorization: Bearer KEY`" if not _presented(named) else "the API key is unknown"
        )
        return Refusal(status=401, message=text, reason=Reason.UNAUTHORIZED)


def _presented(named: dict[bytes, bytes]) -> bytes:
    """The key as OpenAI's clients, Anthropic's (`x-api-key`) and Azure's (`api-key`) send it."""
    authorization = named.get(b"authorization", b"")
    if authorization[:7].lower() == _BEARER:
        return authorization[7:].strip()
    return named.get(b"x-api-key") or named.get(b"api-key") or b""
