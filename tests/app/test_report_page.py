"""The report in a real browser: it draws offline, hostile text stays text, no phone scrolls sideways, it prints."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tailrace.app.report_page import document
from tailrace.app.report_run import run_sections
from tailrace.store.run_file import Run
from tests.app.report_runs import EVIL, a_run
from tests.web.browser import Browser, Tab

pytestmark = [pytest.mark.needs("browser"), pytest.mark.long("a cold Chromium on a busy machine takes many seconds")]

DRAWN = "[...document.querySelectorAll('.plot')].filter(one => one.querySelector('.main-svg')).length"
PLOTS = "document.querySelectorAll('.plot').length"
WIDE = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


def watch(chromium: str, path: Path, run: Run, look: Callable[[Tab], Awaitable[None]], width: int = 1280) -> None:
    """Write the report, open it from the disk, let `look` drive it; it must ask for nothing and complain of nothing."""
    sections, _ = run_sections(run)
    path.write_text(
        document(title=run.header.target, subtitle=run.header.model, sections=sections, footer="made"), encoding="utf-8"
    )

    async def scenario() -> None:
        async with Browser.started(chromium) as browser, browser.tab() as tab:
            await tab.size(width, 900)
            await tab.open(path.as_uri())
            await tab.until("document.readyState === 'complete'")
            await look(tab)
            assert tab.problems == []
            assert {url for url in tab.requests if not url.startswith("data:")} == {path.as_uri()}

    asyncio.run(scenario())


async def draw_all(tab: Tab, width: int) -> None:
    height = await tab.ask("document.documentElement.scrollHeight")
    await tab.size(width, height)
    await tab.until(f"{DRAWN} === {PLOTS}")


@pytest.mark.parametrize("width", [390, 1280])
def test_every_plot_is_drawn_and_no_width_scrolls_sideways(chromium, tmp_path, width):
    async def look(tab: Tab) -> None:
        # What is far below the screen is not drawn yet: a large report opens at once.
        assert await tab.ask(DRAWN) < await tab.ask(PLOTS)
        assert await tab.ask(WIDE)
        await draw_all(tab, width)
        assert await tab.ask(PLOTS) >= 12
        assert await tab.ask(WIDE)
        assert await tab.ask(
            "[...document.querySelectorAll('.plot .main-svg')]"
            ".every(svg => svg.getBoundingClientRect().right <= innerWidth)"
        )
        # A wide table scrolls by itself, and by the keyboard too.
        assert await tab.ask("[...document.querySelectorAll('.scroll')].every(one => one.tabIndex === 0)")

    watch(chromium, tmp_path / "page.html", a_run(), look, width)


def test_foreign_text_stays_text(chromium, tmp_path):
    async def look(tab: Tab) -> None:
        await draw_all(tab, 1280)
        assert await tab.ask("document.querySelector('h1').textContent") == EVIL
        assert EVIL in await tab.ask("document.querySelector('main').textContent")
        # Hover texts and legends are markup to Plotly.
        await tab.ask(
            "Plotly.Fx.hover(document.querySelector('[data-picture=time-ttft]'), [{curveNumber: 1, pointNumber: 0}])"
        )
        await tab.until("document.querySelector('[data-picture=time-ttft] .hoverlayer text')")
        assert await tab.ask("window.hacked") is None
        assert await tab.ask("document.querySelectorAll('main img, header img, main script, svg a').length") == 0

    watch(chromium, tmp_path / "page.html", a_run(evil=True), look)


@pytest.mark.tier("ci")
def test_it_prints_with_every_plot_and_inside_the_paper(chromium, tmp_path):
    async def look(tab: Tab) -> None:
        await tab.size(718, 900)  # A4 in CSS pixels, its margins taken away
        await tab.call("Emulation.setEmulatedMedia", media="print")
        await tab.ask("window.dispatchEvent(new Event('beforeprint')) && 0")
        await tab.until(f"{DRAWN} === {PLOTS}")
        assert await tab.ask(WIDE)
        assert await tab.ask("[...document.querySelectorAll('details')].every(one => one.open)")
        printed = await tab.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        assert len(printed["data"]) > 100_000

    watch(chromium, tmp_path / "page.html", a_run(), look)
