from __future__ import annotations

import jsonschema
import pytest

from tailrace.gateway.admin import _without_secrets
from tailrace.gateway.config import Config, config_from, json_schema, to_plain
from tailrace.model.errors import ConfigError
from tailrace.model.thresholds import S

EMBEDDING = {"url": "http://127.0.0.1:9", "model": "e", "api_key": "hidden"}


def config(**cache) -> Config:
    return config_from({"backends": [{"url": "http://127.0.0.1:8000"}], "cache": cache})


def test_without_routes_there_is_no_cache():
    assert Config.for_upstream("http://127.0.0.1:8000").cache.routes == []


def test_a_whole_section_is_read_and_written_back():
    whole = config(
        routes=[{"paths": ["/v1/embeddings"], "ttl": "1h"}, {"models": ["m*"], "semantic": 0.97}],
        max_bytes=1 << 20,
        entry_bytes=1 << 16,
        ttl="30s",
        vary=["x-tenant"],
        embedding=EMBEDDING,
    )
    assert whole.cache.routes[0].ttl == 3600 * S
    assert config_from(to_plain(whole)).cache == whole.cache
    jsonschema.validate(to_plain(whole), json_schema())
    assert "hidden" not in str(_without_secrets(to_plain(whole)))


@pytest.mark.parametrize(
    ("cache", "place"),
    [
        ({"entry_bytes": 100}, "cache.entry_bytes"),
        ({"entry_bytes": 2048000, "max_bytes": 1024000}, "cache.entry_bytes"),
        ({"ttl": "1ms"}, "cache.ttl"),
        ({"vary": ["x tenant"]}, "cache.vary[0]"),
        ({"routes": [{"paths": ["/v1/audio/transcriptions"]}]}, "cache.routes[0].paths[0]"),
        ({"routes": [{"models": ["a*b"]}]}, "cache.routes[0].models[0]"),
        ({"routes": [{"ttl": "0s"}]}, "cache.routes[0].ttl"),
        ({"routes": [{"semantic": 0.2}], "embedding": EMBEDDING}, "cache.routes[0].semantic"),
        ({"routes": [{"semantic": 0.97}]}, "cache.routes[0].semantic"),
        ({"routes": [{"semantic": 0.97, "paths": ["/v1/embeddings"]}], "embedding": EMBEDDING}, "routes[0].semantic"),
        ({"embedding": {**EMBEDDING, "url": "nowhere"}}, "cache.embedding.url"),
        ({"embedding": {**EMBEDDING, "model": ""}}, "cache.embedding.model"),
        ({"embedding": {**EMBEDDING, "timeout": "60s"}}, "cache.embedding"),
    ],
)
def test_what_cannot_work_is_refused_with_its_place_and_a_remedy(cache, place):
    with pytest.raises(ConfigError) as refused:
        config(**cache)
    assert place in refused.value.place
    assert refused.value.remedy
