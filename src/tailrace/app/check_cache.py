"""The response cache's routes against one another."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.app.config_finding import config_finding
from tailrace.gateway.cache_keys import CacheRouteConfig
from tailrace.gateway.config import Config
from tailrace.govern.cache_key import CACHEABLE_PATHS
from tailrace.model.check import CheckFinding, Weight


def judge_cache(config: Config, name: str) -> Iterator[CheckFinding]:
    """Routes that nothing reaches, and an embedding that nobody asks for."""
    cache = config.cache
    for index, route in enumerate(cache.routes):
        before = next((at for at, earlier in enumerate(cache.routes[:index]) if _covers(earlier, route)), None)
        if before is not None:
            yield config_finding(
                "CONFIG_CACHE_ROUTE_SHADOWED",
                Weight.ERROR,
                name,
                f"cache.routes[{index}]",
                f"No request ever reaches this route: the first that matches decides, and routes[{before}] takes all "
                "of them.",
                advice=f"Write it above routes[{before}], or leave it out.",
                effect="Its ttl and its threshold come into force.",
                price="None.",
            )
    if cache.embedding is not None and not any(route.semantic is not None for route in cache.routes):
        yield config_finding(
            "CONFIG_EMBEDDING_UNUSED",
            Weight.ADVICE,
            name,
            "cache.embedding",
            "A server is named that says what questions mean, and no route compares by meaning.",
            advice="routes: [{..., semantic: 0.97}], or leave `embedding` out",
            effect="Nearly the same questions get the same answer.",
            price="Some answers belong to a question that only looked the same.",
        )


def _covers(earlier: CacheRouteConfig, later: CacheRouteConfig) -> bool:
    paths = set(later.paths or CACHEABLE_PATHS) <= set(earlier.paths or CACHEABLE_PATHS)
    if not earlier.models:
        return paths
    return paths and bool(later.models) and all(_named(earlier.models, model) for model in later.models)


def _named(patterns: list[str], model: str) -> bool:
    return any(
        model == pattern or (pattern.endswith("*") and model.rstrip("*").startswith(pattern[:-1]))
        for pattern in patterns
    )
