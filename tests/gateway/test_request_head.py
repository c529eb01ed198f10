"""A head that is taken for an earlier one differs from it in its length alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.gateway.config import Config, config_from
from tailrace.gateway.request_head import RequestHead
from tailrace.gateway.routes import route

CONFIG: Config = config_from({"backends": [{"url": "http://127.0.0.1:9"}]})
names = st.sampled_from([b"Host", b"host", b"Content-Length", b"content-length", b"Accept", b"X-A"])
headers_ = st.lists(st.tuples(names, st.sampled_from([b"1", b"2", b"*/*"])), max_size=5)
PATH = b"/v1/chat/completions"


def head(headers: list[tuple[bytes, bytes]]) -> RequestHead:
    return RequestHead(b"POST", PATH, "1.1", headers, {}, route(PATH), CONFIG)


@given(headers_, headers_)
def test_same_headers_but_for_the_length(first: list[tuple[bytes, bytes]], second: list[tuple[bytes, bytes]]) -> None:
    def without_first_length(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes | None]]:
        out: list[tuple[bytes, bytes | None]] = list(headers)
        for at, (name, _) in enumerate(headers):
            if name.lower() == b"content-length":
                out[at] = (name, None)
                break
        return out

    same = head(first).same(b"POST", PATH, "1.1", second, CONFIG)
    assert same == (without_first_length(first) == without_first_length(second))
    if same:
        length = (
            next((int(value) for name, value in second if name.lower() == b"content-length"), 0)
            if _counts(second)
            else None
        )
        if length is not None:
            assert head(first).length_of(second) == length


def _counts(headers: list[tuple[bytes, bytes]]) -> bool:
    return all(value.isdigit() for name, value in headers if name.lower() == b"content-length")


def test_another_method_path_version_or_configuration_is_another_head() -> None:
    known = head([(b"Host", b"a")])
    headers = [(b"Host", b"a")]
    assert known.same(b"POST", PATH, "1.1", headers, CONFIG)
    assert not known.same(b"PUT", PATH, "1.1", headers, CONFIG)
    assert not known.same(b"POST", PATH + b"?x", "1.1", headers, CONFIG)
    assert not known.same(b"POST", PATH, "1.0", headers, CONFIG)
    assert not known.same(b"POST", PATH, "1.1", headers, config_from({"backends": [{"url": "http://127.0.0.1:9"}]}))
