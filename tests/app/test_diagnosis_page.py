"""The diagnosis as a page: what it holds, that hostile text stays text, and how it looks in a real browser."""

from __future__ import annotations

import asyncio
import re
from functools import cache

import msgspec
import pytest

from tailrace.app.diagnosis_page import diagnosis_page, write_diagnosis
from tailrace.model.errors import InputError
from tailrace.model.finding import Action, Diagnosis, Evidence, Finding, Layer, Level
from tests.diagnose.simulated import UNCHUNKED, answer, as_client, as_gateway, served
from tests.web.browser import Browser

EVIL = "<img src=x onerror='window.hacked=1'></script><script>window.hacked=1</script>"
WIDE = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


@cache
def found() -> Diagnosis:
    return answer(as_client(served(**UNCHUNKED)), before=as_client(served(3, rate=4.0)))


def hostile() -> Diagnosis:
    one = Finding(
        code=EVIL,
        layer=Layer.GATEWAY,
        stage=EVIL,
        level=Level.SUSPECTED,
        statement=EVIL,
        evidence=[Evidence(text=EVIL, source=EVIL)],
        advice=EVIL,
        verify=EVIL,
        missing=[EVIL],
        requests=[EVIL],
    )
    return Diagnosis(findings=[one], summary=EVIL, paragraph=EVIL, needs=[EVIL], not_understood=[EVIL])


def test_the_page_holds_the_paragraph_the_evidence_and_the_requests():
    page = diagnosis_page(found(), title="Diagnosis of after.run", sources=["after.run"])
    first = found().findings[0]
    for part in (first.code, first.evidence[0].source, first.requests[0], "not explained", "Where the tail, or its"):
        assert part in page
    loads = re.findall(r"(?:src|href|url|action)\s*[=(]\s*[\"']?(https?:[^\"' )>]*)", page)
    assert loads == [], "it opens offline"
    outside = re.sub(r"<code>.*?</code>", "", page, flags=re.DOTALL).replace("http://www.w3.org", "")
    assert "http" not in outside.replace("http-equiv", ""), "addresses stand in commands to type, and nowhere else"
    assert page.count("<script") == 1  # the data of no picture: an empty object


def test_requests_of_a_gateway_link_to_its_dashboard():
    page = diagnosis_page(found(), title="t", sources=["http://127.0.0.1:9480/"])
    assert f'href="http://127.0.0.1:9480/#request={found().findings[0].requests[0]}"' in page


def test_nothing_wrong_and_nothing_at_all_are_pages_too():
    healthy = answer(as_gateway(served(rate=2.0, long_share=0.0)))
    assert "Nothing is wrong" in diagnosis_page(healthy, title="t")
    few = answer(as_gateway(served(**UNCHUNKED))[:10])
    page = diagnosis_page(few, title="t")
    assert "No cause found" in page
    assert "To collect next" in page


def test_an_action_without_advice_ends_without_a_colon():
    one = Finding(
        code="INSUFFICIENT_EVIDENCE",
        layer=Layer.VALIDITY,
        stage="",
        level=Level.INSUFFICIENT,
        statement="",
        evidence=[],
    )
    page = diagnosis_page(Diagnosis(findings=[one], summary="Cannot tell.", action=Action.COLLECT), title="t")
    assert "<dd>collect</dd>" in page


def test_foreign_text_is_escaped():
    page = diagnosis_page(hostile(), title=EVIL, sources=[EVIL, "http://a"])
    assert "<img" not in page
    assert "<script>window" not in page


def test_the_same_diagnosis_is_the_same_page():
    pages = {diagnosis_page(msgspec.convert(msgspec.to_builtins(found()), Diagnosis), title="t") for _ in range(2)}
    assert len(pages) == 1
    assert pages == {diagnosis_page(found(), title="t")}


def test_the_page_replaces_no_source_and_says_where_it_cannot_be(tmp_path):
    source = tmp_path / "a.run"
    source.write_text("x")
    for sources in ([str(source)], ["other.run", str(source)]):
        with pytest.raises(InputError, match="replace") as raised:
            write_diagnosis(found(), source, sources)
        assert "--html" in raised.value.remedy
    with pytest.raises(InputError, match="cannot write"):
        write_diagnosis(found(), tmp_path / "none" / "page.html", ["a.run"])
    assert write_diagnosis(found(), tmp_path / "page.html", ["a.run"]) == (tmp_path / "page.html").stat().st_size


@pytest.mark.needs("browser")
@pytest.mark.long("a cold Chromium on a busy machine takes many seconds")
@pytest.mark.parametrize("width", [390, 1280])
def test_in_a_browser_it_is_readable_asks_for_nothing_and_runs_nothing_foreign(chromium, tmp_path, width):
    pages = {"real": found(), "hostile": hostile()}
    for name, one in pages.items():
        (tmp_path / f"{name}.html").write_text(diagnosis_page(one, title=name, sources=["after.run"]))

    async def scenario() -> None:
        async with Browser.started(chromium) as browser, browser.tab() as tab:
            await tab.size(width, 900)
            for name in pages:
                await tab.open((tmp_path / f"{name}.html").as_uri())
                await tab.until("document.readyState === 'complete'")
                assert await tab.ask(WIDE), name
                assert await tab.ask("window.hacked") is None
                await tab.until(f"document.querySelector('h1').textContent === '{name}'")
            await tab.open((tmp_path / "real.html").as_uri())
            await tab.until("document.querySelector('#finding-1 table')")
            assert await tab.ask("document.querySelector('#verdict .banner').innerText.length") > 200
            assert await tab.ask("document.querySelectorAll('#attribution tbody tr').length") >= 3
            assert await tab.ask("document.querySelectorAll('#tail tbody tr').length") >= 2
            assert tab.problems == []
            assert {url.rpartition("/")[2] for url in tab.requests} == {"real.html", "hostile.html"}

    asyncio.run(scenario())
