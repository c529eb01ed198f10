from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.gateway.aliases import Aliases, with_model
from tailrace.measure.ledger import RequestLedger

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8) | st.just("model"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.just("model"), inner),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"a"}', b'{"model":"new"}'),
        (b'{ "x" : 1 ,\n"model"\t:\r\n "a" }', b'{ "x" : 1 ,\n"model"\t:\r\n "new" }'),
        (b'{"mod\\u0065l":"a"}', b'{"mod\\u0065l":"new"}'),
        (b'{"model":"a","model":"b"}', b'{"model":"new","model":"new"}'),
        (b'{"x":{"model":"a"},"model":"a"}', b'{"x":{"model":"a"},"model":"new"}'),
        (b'{"x":["model","a",{"model":"a"}],"model":"a"}', b'{"x":["model","a",{"model":"a"}],"model":"new"}'),
        (b'{"x":"\\"model\\":\\"a\\"","model":"a"}', b'{"x":"\\"model\\":\\"a\\"","model":"new"}'),
        (b'{"x":"}{]\\\\","model":"a"}', b'{"x":"}{]\\\\","model":"new"}'),
        (b'{"model":"\\u0061\\"b"}', b'{"model":"new"}'),
        (b'{"x":"model","model":"a"}', b'{"x":"model","model":"new"}'),
        (b'{"model":5,"model":"a"}', b'{"model":5,"model":"new"}'),
        ('{"é":"ü","model":"ä"}'.encode(), '{"é":"ü","model":"new"}'.encode()),
        (b"{}", b"{}"),
    ],
)
def test_only_the_top_level_name_changes(body: bytes, expected: bytes) -> None:
    assert with_model(body, "new") == expected


@given(st.dictionaries(st.text(max_size=6), JSON, max_size=4), st.text(max_size=8), st.text(max_size=8), st.booleans())
def test_any_body_means_the_same_but_for_its_model(rest: dict, old: str, new: str, ascii_only: bool) -> None:
    plain = {**rest, "model": old}
    out = with_model(json.dumps(plain, ensure_ascii=ascii_only, indent=1).encode("utf-8", "surrogatepass"), new)
    assert json.loads(out) == {**plain, "model": new}


def test_the_ledger_keeps_both_names_and_an_alias_is_one_step() -> None:
    aliases = Aliases({"gpt-4": "small", "small": "other"})
    ledger = RequestLedger(request_id="r", start_unix_ns=1, received=1, model="gpt-4")
    assert aliases.applied(b'{"model":"gpt-4"}', ledger) == b'{"model":"small"}'
    assert (ledger.model, ledger.requested_model) == ("small", "gpt-4")
    ledger = RequestLedger(request_id="r", start_unix_ns=1, received=1, model="plain")
    body = b'{"model":"plain"}'
    assert aliases.applied(body, ledger) is body
    assert (ledger.model, ledger.requested_model) == ("plain", "")
