from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.gateway.routes import _DENIED, ADMITTED, RouteKind, route

PATHS = {
    b"/v1/chat/completions": (RouteKind.READ, "/v1/chat/completions"),
    b"/v1/completions?x=1": (RouteKind.READ, "/v1/completions"),
    b"/v1/responses": (RouteKind.READ, "/v1/responses"),
    b"/v1/messages": (RouteKind.READ, "/v1/messages"),
    b"/v1/embeddings": (RouteKind.READ, "/v1/embeddings"),
    b"/generate": (RouteKind.READ, "/generate"),
    b"/v1/models": (RouteKind.RELAY, "/v1/models"),
    b"/v1/models/org/name": (RouteKind.RELAY, "/v1/models"),
    b"/v1/responses/resp_1": (RouteKind.RELAY, "/v1/responses/{id}"),
    b"/v1/realtime?model=m": (RouteKind.SOCKET, "/v1/realtime"),
    b"/v1/realtime/": (RouteKind.SOCKET, "/v1/realtime"),
    b"/v1/realtime/sessions": (RouteKind.UNKNOWN, ""),
    b"/v2": (RouteKind.RELAY, "/v2"),
    b"/v2/health/ready": (RouteKind.RELAY, "/v2/health/ready"),
    b"/v2/health/live/": (RouteKind.RELAY, "/v2/health/live"),
    b"/v2/models/m": (RouteKind.RELAY, "/v2/models/{model}"),
    b"/v2/models/infer": (RouteKind.RELAY, "/v2/models/{model}"),
    b"/v2/models/m/ready": (RouteKind.RELAY, "/v2/models/{model}/ready"),
    b"/v2/models/m/versions/3/ready": (RouteKind.RELAY, "/v2/models/{model}/ready"),
    b"/v2/models/m/infer": (RouteKind.READ, "/v2/models/{model}/infer"),
    b"/v2/models/m/versions/1/infer": (RouteKind.READ, "/v2/models/{model}/infer"),
    b"/v2/models/m/versions/1/generate": (RouteKind.READ, "/v2/models/{model}/generate"),
    b"/v2/models/m/versions/1/generate_stream?x=y": (RouteKind.READ, "/v2/models/{model}/generate_stream"),
    b"/v2/models/m/versions/1/other/infer": (RouteKind.RELAY, "/v2"),
    b"/v2/models/m/versions/1/trace/setting": (RouteKind.DENIED, "/v2"),
    b"/v1/audio/transcriptions": (RouteKind.READ, "/v1/audio/transcriptions"),
    b"/v1/audio/translations": (RouteKind.READ, "/v1/audio/translations"),
    b"/v1/rerank": (RouteKind.UNKNOWN, ""),
    b"/v1/score": (RouteKind.UNKNOWN, ""),
    b"/tokenize": (RouteKind.UNKNOWN, ""),
    b"/v1/sleep": (RouteKind.DENIED, ""),
    b"/v2/models/load": (RouteKind.RELAY, "/v2/models/{model}"),
    b"/v1/models/unload": (RouteKind.RELAY, "/v1/models"),
    b"/v2/flush_cache": (RouteKind.DENIED, "/v2"),
    b"/%2573leep": (RouteKind.DENIED, ""),
    b"/%252573leep/": (RouteKind.DENIED, ""),
    b"/init_weight_transfer_engine": (RouteKind.DENIED, ""),
    b"/v2/models/m/generate_stream": (RouteKind.READ, "/v2/models/{model}/generate_stream"),
    b"/v2/models/m/trace/setting": (RouteKind.DENIED, "/v2"),
    b"/v2/repository/index": (RouteKind.DENIED, "/v2"),
    b"/": (RouteKind.UNKNOWN, ""),
    b"/health": (RouteKind.RELAY, "/health"),
    b"/health/x": (RouteKind.UNKNOWN, ""),
    b"/v1": (RouteKind.UNKNOWN, ""),
    b"*": (RouteKind.MALFORMED, ""),
}


def test_those_that_go_through_a_lane_are_listed() -> None:
    through = {endpoint for kind, endpoint in PATHS.values() if kind in (RouteKind.READ, RouteKind.SOCKET)}
    assert through <= ADMITTED
    assert {route(endpoint.encode()).kind for endpoint in ADMITTED} == {RouteKind.READ, RouteKind.SOCKET}


@pytest.mark.parametrize(("target", "wanted"), PATHS.items())
def test_paths(target: bytes, wanted: tuple[RouteKind, str]) -> None:
    assert tuple(route(target)) == wanted


@pytest.mark.parametrize("path", sorted(_DENIED))
def test_denied_paths_stay_denied_whatever_passthrough_says(path: bytes) -> None:
    once = path[:1] + b"%%%02x" % path[1] + path[2:]
    twice = path[:1] + b"%%25%02x" % path[1] + path[2:]
    for spelled in (path, path + b"/", path.upper(), path + b"?a=b", once, twice):
        assert route(spelled, ["/*", path.decode()]).kind is RouteKind.DENIED
    if not path.startswith(b"/models/"):
        assert route(b"/v3" + path, ["/*"]).kind is RouteKind.DENIED


@given(st.binary(max_size=60).map(lambda tail: b"/" + tail))
def test_nothing_that_resolves_to_a_denied_path_is_relayed(target: bytes) -> None:
    from urllib.parse import unquote_to_bytes

    kind = route(target, ["/*"]).kind
    if kind in (RouteKind.READ, RouteKind.RELAY):
        plain = unquote_to_bytes(target.partition(b"?")[0])
        assert b"//" not in plain
        assert not {b".", b".."} & set(plain.split(b"/"))
        assert plain.rstrip(b"/").lower() not in _DENIED


def test_passthrough_matches_whole_paths_and_prefixes() -> None:
    patterns = ["/tokenize", "/extra/*"]
    assert tuple(route(b"/tokenize", patterns)) == (RouteKind.RELAY, "/tokenize")
    assert tuple(route(b"/extra/a/b", patterns)) == (RouteKind.RELAY, "/extra/*")
    assert route(b"/tokenizer", patterns).kind is RouteKind.UNKNOWN
