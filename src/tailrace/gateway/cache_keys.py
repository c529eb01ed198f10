"""The configuration's keys for the response cache: what may be cached, for how long, how much."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.gateway.config_values import Duration, Section, lasting
from tailrace.govern.cache_key import CACHEABLE_PATHS, EMBEDDINGS
from tailrace.model.errors import ConfigError
from tailrace.model.thresholds import MS, S

if TYPE_CHECKING:
    from collections.abc import Callable

_KIB: Final = 1024
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class CacheRouteConfig(Section):
    """Requests whose answers may be given again: those that all of its conditions hold for."""

    paths: list[str] = msgspec.field(default_factory=list)
    """Of `/v1/chat/completions`, `/v1/completions`, `/v1/responses`, `/v1/messages`, `/v1/embeddings`; empty: all."""
    models: list[str] = msgspec.field(default_factory=list)
    """Names of models, as the engine calls them; a trailing `*` matches the rest. Empty: all."""
    ttl: Duration | None = None
    """How long an answer is given again; unset: the cache's own."""
    semantic: float | None = None
    """Answers to a question of nearly the same meaning, from this cosine on (0.5 to 1); unset: never. Needs
    `embedding`."""


class EmbeddingConfig(Section):
    """Who is asked what a question means."""

    url: str
    """Base address of a server with `/v1/embeddings`."""
    model: str
    api_key: str | None = None
    timeout: Duration = lasting(200 * MS)
    """How long a request waits for it at most; no answer is a miss."""
    at_once: int = 32
    """Questions asked at the same time; beyond it a question is a miss at once."""


class CacheConfig(Section):
    """Answers given again. Off until a route says what may be; each worker has a cache of its own."""

    routes: list[CacheRouteConfig] = msgspec.field(default_factory=list)
    """The first that a request meets decides; none: it is not cached. Only requests that repeat are: temperature 0, or
    a seed; embeddings."""
    max_bytes: int = 256 * 1024 * _KIB
    """Of all answers together, in each worker; the least recently used go first."""
    entry_bytes: int = 4 * 1024 * _KIB
    """Of one answer: a stream of some 15,000 tokens."""
    ttl: Duration = lasting(600 * S)
    """How long an answer is given again."""
    single_flight: bool = True
    """Identical requests at once are one: those that come while the first is in flight get its answer as it comes."""
    vary: list[str] = msgspec.field(default_factory=list)
    """Further request headers that tell one asker, or one answer, from another: `x-tenant`."""
    embedding: EmbeddingConfig | None = None


def check_cache(cache: CacheConfig, *, place: str, check_url: Callable[..., None]) -> None:
    """Refuse routes that match nothing and bounds that hold nothing. Raises `ConfigError`."""
    if not 4 * _KIB <= cache.entry_bytes <= cache.max_bytes:
        raise ConfigError(
            f"answers of {cache.entry_bytes} bytes in a cache of {cache.max_bytes} bytes cannot be",
            place=f"{place}.entry_bytes",
            remedy="Write at least 4096 for entry_bytes, and at least as much for max_bytes; leave both out for 4 MiB "
            "and 256 MiB.",
        )
    _check_ttl(cache.ttl, place=f"{place}.ttl")
    for index, name in enumerate(cache.vary):
        if not _HEADER.fullmatch(name):
            raise ConfigError(
                f"{name!r} is no header's name", place=f"{place}.vary[{index}]", remedy="Write it as in `x-tenant`."
            )
    for index, one in enumerate(cache.routes):
        _check_route(one, cache, place=f"{place}.routes[{index}]")
    embedding = cache.embedding
    if embedding is not None:
        check_url(embedding.url, place=f"{place}.embedding.url", unix=True)
        if not embedding.model:
            raise ConfigError(
                "the model has no name",
                place=f"{place}.embedding.model",
                remedy="Write the name under which the server lists it.",
            )
        if not 1 * MS <= embedding.timeout <= 10 * S or not 1 <= embedding.at_once <= 1024:
            raise ConfigError(
                "no question could be asked within these bounds",
                place=f"{place}.embedding",
                remedy="timeout: from 1ms to 10s (200ms by default); at_once: from 1 to 1024 (32 by default).",
            )


def _check_route(one: CacheRouteConfig, cache: CacheConfig, *, place: str) -> None:
    for at, path in enumerate(one.paths):
        if path not in CACHEABLE_PATHS:
            raise ConfigError(
                f"answers of {path!r} are never given again",
                place=f"{place}.paths[{at}]",
                remedy=f"Write one of {', '.join(CACHEABLE_PATHS)}.",
            )
    for at, model in enumerate(one.models):
        if not model or "*" in model[:-1]:
            raise ConfigError(
                f"{model!r} names no models",
                place=f"{place}.models[{at}]",
                remedy="Write a model's name; a `*` may stand at its end only.",
            )
    if one.ttl is not None:
        _check_ttl(one.ttl, place=f"{place}.ttl")
    if one.semantic is None:
        return
    if not 0.5 <= one.semantic <= 1.0:
        raise ConfigError(
            f"{one.semantic:g} is no threshold for nearly the same meaning",
            place=f"{place}.semantic",
            remedy="Write a cosine from 0.5 to 1; begin with 0.97 and look at what is called the same.",
        )
    if cache.embedding is None:
        raise ConfigError(
            "nobody says what a question means",
            place=f"{place}.semantic",
            remedy="Add `cache: {embedding: {url: ..., model: ...}}`, or leave `semantic` out.",
        )
    if one.paths == [EMBEDDINGS]:
        raise ConfigError(
            "an embedding of nearly the same text is another embedding",
            place=f"{place}.semantic",
            remedy="Leave `semantic` out of this route; the exact cache serves embeddings.",
        )


def _check_ttl(ttl: int, *, place: str) -> None:
    if ttl < 100 * MS:
        raise ConfigError(
            "an answer that is too old at once is never given again",
            place=place,
            remedy="Write at least `100ms`; `10m` is the default.",
        )
