"""The page in a real browser: the pictures, live updates, hostile text, narrow screens, a gateway that goes away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

import msgspec
import pytest

from tailrace.figures.palette import STAGE_COLORS
from tests.web.browser import Browser, Tab
from tests.web.serving import served
from tests.web.traffic import ListSource, busy_live, realistic_records

pytestmark = [pytest.mark.needs("browser"), pytest.mark.long("a cold Chromium on a busy machine takes many seconds")]

DRAWN = "document.querySelectorAll('#stages-plot .main-svg, #lengths-plot .main-svg, #failures-plot .main-svg').length"
EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
REFRESH_S = 0.4


@contextlib.asynccontextmanager
async def looking(chromium: str, url: str, *, width: int = 1280, scheme: str = "light") -> AsyncIterator[Tab]:
    async with Browser.started(chromium) as browser, browser.tab() as tab:
        await tab.scheme(scheme)
        await tab.size(width, 900)
        await tab.open(url)
        await tab.until("document.readyState === 'complete'")
        yield tab
        hosts = {urlsplit(request).netloc for request in tab.requests if not request.startswith("data:")}
        assert hosts <= {urlsplit(url).netloc}, "the page asks another host"


def watch(chromium: str, source: ListSource, look: Callable[[Tab], Awaitable[None]], **options) -> None:
    """Serve `source`, let `look` drive the page, and require a clean console."""

    async def scenario() -> None:
        async with served(source, refresh_s=REFRESH_S) as url, looking(chromium, url + "/", **options) as tab:
            await look(tab)
            assert tab.problems == []

    asyncio.run(scenario())


def test_three_pictures_with_data_that_update_live_and_keep_the_zoom(chromium):
    source = ListSource(realistic_records(1200), busy_live())

    async def look(tab: Tab) -> None:
        await tab.until(f"{DRAWN} >= 6")  # Plotly stacks two or more SVGs a figure
        await tab.until("document.getElementById('ttft').textContent.includes('p99')")
        title = await tab.ask("document.getElementById('stages-title').textContent")
        assert title.startswith("Requests around p99 wait ")
        assert await tab.ask("document.querySelectorAll('#stages-plot .bars .point').length") > 6
        assert await tab.ask("document.querySelectorAll('#lengths-plot .heatmaplayer image').length") == 2
        assert await tab.ask("document.querySelectorAll('#failures-plot .bars .point').length") > 3
        assert await tab.ask("document.querySelectorAll('#slowest tbody tr').length") == 15
        assert await tab.ask("document.getElementById('queue-note').textContent") == "interactive 0 · long_document 3"
        assert not await tab.ask("document.getElementById('simulated').hidden")
        assert await tab.ask("document.getElementById('dropped-tile').hidden")
        # The browser shows the palette's colour, in bars, tables and legend alike.
        wanted = STAGE_COLORS["light"]["prefill"]
        assert await tab.ask(
            "(() => { const probe = document.createElement('i'); probe.style.color = " + repr(wanted) + ";"
            "const swatch = document.querySelector('#stages-legend [data-stage=prefill]');"
            "return getComputedStyle(swatch).backgroundColor === probe.style.color; })()"
        )
        # A refresh must neither redraw from nothing nor lose the reader's zoom.
        await tab.ask("window.before = document.querySelector('#stages-plot .main-svg')")
        automatic = await tab.ask("document.getElementById('stages-plot').layout.xaxis.range")
        box = await tab.ask(
            "(() => { const b = document.querySelector('#stages-plot .nsewdrag').getBoundingClientRect();"
            "return [b.x, b.y, b.width, b.height]; })()"
        )
        await tab.drag(box[0] + box[2] * 0.2, box[1] + box[3] / 2, box[0] + box[2] * 0.6)
        await tab.until(f"document.getElementById('stages-plot').layout.xaxis.range[0] > {automatic[1] * 0.1}")
        chosen = await tab.ask("document.getElementById('stages-plot').layout.xaxis.range")
        assert chosen[1] < automatic[1] * 0.7
        before = await tab.ask("document.getElementById('rate-note').textContent")
        source.records += realistic_records(300, seed=9)
        source.now["dropped"] = {"normal": 7, "slow": 0}
        source.now["given_up"] = ["batch", "cap"]
        await tab.until(f"document.getElementById('rate-note').textContent !== {before!r}")
        await tab.until("document.getElementById('rate-note').textContent.startsWith('1,500 ended')")
        await tab.until("document.getElementById('stages-note').textContent.includes('of 1,4')")
        assert await tab.ask("document.querySelector('#stages-plot .main-svg') === window.before")
        zoom = await tab.ask("document.getElementById('stages-plot').layout.xaxis.range")
        assert zoom == chosen
        assert await tab.ask("document.getElementById('dropped').textContent") == "7"
        assert not await tab.ask("document.getElementById('dropped-tile').hidden")
        note = await tab.ask("document.getElementById('queue-note').textContent")
        assert note == "degraded: batch, cap · interactive 0 · long_document 3"

    watch(chromium, source, look)


def test_an_unchanged_view_costs_no_body_and_no_redraw(chromium):
    async def scenario() -> None:
        # A long refresh on the server keeps the view; the browser is told to ask often all the same.
        source = ListSource(realistic_records(200))
        async with served(source, refresh_s=REFRESH_S) as url, looking(chromium, url + "/") as tab:
            await tab.until(f"{DRAWN} >= 6")
            await tab.ask(
                "document.getElementById('stages-plot')"
                ".on('plotly_afterplot', () => { window.draws = (window.draws || 0) + 1; }) && 0"
            )
            seen = len(tab.requests)
            await tab.until(f"performance.getEntriesByType('resource').length >= {seen + 6}")
            assert tab.not_modified >= 2
            assert not await tab.ask("window.draws")
            assert tab.problems == []

    asyncio.run(scenario())


def test_foreign_text_stays_text(chromium):
    records = [
        msgspec.structs.replace(
            row,
            model=EVIL,
            lane=EVIL if number % 2 else "plain",
            error=EVIL if row.reason else "",
            died_in=EVIL if row.died_in else "",
            request_id=f"{EVIL}{number}",
            stage_sources=dict.fromkeys(row.stage_sources, EVIL),
        )
        for number, row in enumerate(realistic_records(400))
    ]
    live = busy_live()
    live["lanes"] = {EVIL: {"running": 1, "queued": 2}}
    live["streams"] = [{"request_id": EVIL, "lane": EVIL, "stage": EVIL, "age_ms": 5.0, "model": EVIL}]
    live["engine"] = live["engine_version"] = EVIL
    source = ListSource(records, live, title=EVIL)

    async def look(tab: Tab) -> None:
        await tab.until(f"{DRAWN} >= 6")
        assert await tab.ask("document.getElementById('target').textContent") == EVIL
        assert EVIL in await tab.ask("document.getElementById('failures-title').textContent")
        assert EVIL in await tab.ask("document.getElementById('lane').textContent")
        await tab.ask("document.querySelector('#slowest a').click()")
        await tab.until("document.getElementById('detail').open")
        assert EVIL in await tab.ask("document.getElementById('detail-facts').textContent")
        # Hover texts are markup to Plotly: draw one.
        await tab.ask("document.getElementById('detail').close()")
        await tab.ask("Plotly.Fx.hover('stages-plot', [{curveNumber: 0, pointNumber: 0}])")
        await tab.until("document.querySelector('#stages-plot .hoverlayer text')")
        await asyncio.sleep(REFRESH_S * 3)
        assert await tab.ask("window.hacked") is None
        assert await tab.ask("document.querySelectorAll('main img, header img, dialog img, main script').length") == 0
        assert await tab.ask("document.querySelectorAll('svg a').length") == 0

    watch(chromium, source, look)


@pytest.mark.parametrize("width", [390, 1280])
def test_no_width_scrolls_sideways(chromium, width):
    source = ListSource(realistic_records(800), busy_live())
    wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"

    async def look(tab: Tab) -> None:
        await tab.until(f"{DRAWN} >= 6")
        assert await tab.ask("innerWidth") == width
        assert await tab.ask(wide)
        assert await tab.ask(
            "[...document.querySelectorAll('.card .main-svg')]"
            ".every(svg => svg.getBoundingClientRect().right <= innerWidth)"
        )
        await tab.ask("document.querySelector('#slowest a').click()")
        await tab.until("document.getElementById('detail').open")
        assert await tab.ask(wide)

    watch(chromium, source, look, width=width)


def test_the_detail_view_opens_by_key_and_closes_by_key(chromium):
    source = ListSource(realistic_records(300))

    async def look(tab: Tab) -> None:
        await tab.until("document.querySelectorAll('#slowest a').length === 15")
        await tab.ask("document.querySelector('#slowest a').focus()")
        link = await tab.ask("document.activeElement.hash")
        await asyncio.sleep(REFRESH_S * 3)
        assert await tab.ask("document.activeElement.hash") == link  # a refresh leaves the keyboard where it was
        await tab.press("Enter", 13)
        await tab.until("document.getElementById('detail').open")
        await tab.until("document.querySelector('#timeline-plot .main-svg')")
        assert await tab.ask("document.querySelectorAll('#detail-stages tbody tr').length") >= 8
        assert "reported(metrics.queue_time_ms)" in await tab.ask("document.getElementById('detail').textContent")
        await tab.press("Escape", 27)
        await tab.until("!document.getElementById('detail').open")
        await tab.until("location.hash === ''")  # the dialog says that it has closed a moment after it has

    watch(chromium, source, look)


def test_choices_change_what_is_shown(chromium):
    source = ListSource(realistic_records(900))

    def choose(name: str, value: str) -> str:
        return (
            f"(() => {{ const one = document.getElementById('{name}'); one.value = '{value}';"
            "one.dispatchEvent(new Event('change')); })()"
        )

    async def look(tab: Tab) -> None:
        await tab.until(f"{DRAWN} >= 6")
        assert await tab.ask("document.getElementById('metric').value") == "ttft"
        await tab.ask(choose("metric", "e2e"))
        await tab.until("document.getElementById('stages-title').textContent.includes('take')")
        await tab.until("document.getElementById('slowest-title').textContent.includes('end-to-end')")
        await tab.ask(choose("lane", "long_document"))
        await tab.until(
            "[...document.querySelectorAll('#slowest tbody tr')]"
            ".every(row => row.cells[2].textContent === 'long_document')"
        )
        await tab.ask("document.querySelector('input[value=\"1m\"]').click()")
        await tab.until(
            "performance.getEntriesByType('resource').some(one => one.name.includes('window=1m&lane=long_document'))"
        )

    watch(chromium, source, look)


def test_light_and_dark_follow_the_system_and_the_choice(chromium):
    source = ListSource(realistic_records(300))
    paper = "getComputedStyle(document.querySelector('.card')).backgroundColor"
    drawn = "document.getElementById('stages-plot').layout.paper_bgcolor"

    async def look(tab: Tab) -> None:
        await tab.until(f"{DRAWN} >= 6")
        assert await tab.ask(paper) == "rgb(20, 24, 31)"
        assert await tab.ask(drawn) == "#14181f"
        await tab.ask(
            "(() => { const one = document.getElementById('theme'); one.value = 'light';"
            "one.dispatchEvent(new Event('change')); })()"
        )
        await tab.until(f"{drawn} === '#ffffff'")
        assert await tab.ask(paper) == "rgb(255, 255, 255)"

    watch(chromium, source, look, scheme="dark")


def test_an_empty_gateway_says_what_to_do(chromium):
    async def look(tab: Tab) -> None:
        await tab.until("!document.getElementById('stages-empty').hidden")
        for name in ("stages", "lengths", "failures"):
            assert "longer window" in await tab.ask(f"document.getElementById('{name}-empty').textContent")
        assert await tab.ask("document.querySelectorAll('.main-svg').length") == 0

    watch(chromium, ListSource([]), look)


def test_a_gateway_that_goes_away_is_said_and_comes_back_by_itself(chromium):
    source = ListSource(realistic_records(200))

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            first = contextlib.AsyncExitStack()
            url = await first.enter_async_context(served(source, refresh_s=REFRESH_S))
            tab = await stack.enter_async_context(looking(chromium, url + "/"))
            await tab.until(f"{DRAWN} >= 6")
            await first.aclose()
            await tab.until("!document.getElementById('lost').hidden")
            text = await tab.ask("document.getElementById('lost').textContent")
            assert text.startswith(f"The gateway at {urlsplit(url).netloc} does not answer, since ")
            assert await tab.ask("document.body.classList.contains('stale')")
            # What was there stays readable.
            assert await tab.ask(f"{DRAWN}") >= 6
            source.records += realistic_records(50, seed=5)
            port = urlsplit(url).port
            assert port is not None
            await stack.enter_async_context(served(source, port=port, refresh_s=REFRESH_S))
            await tab.until("document.getElementById('lost').hidden")
            await tab.until("document.getElementById('rate-note').textContent.startsWith('250 ended')")
            assert not await tab.ask("document.body.classList.contains('stale')")

    asyncio.run(scenario())


def test_a_guarded_port_asks_for_its_token(chromium):
    source = ListSource(realistic_records(200))

    async def scenario() -> None:
        async with served(source, token="sesame", refresh_s=REFRESH_S) as url, looking(chromium, url + "/") as tab:
            await tab.until("!document.getElementById('token-form').hidden")
            assert "200 ended" not in await tab.ask("document.body.textContent")
            await tab.ask("document.getElementById('token').value = 'sesame'")
            await tab.ask("document.querySelector('#token-form button').click()")
            await tab.until("document.getElementById('rate-note').textContent.startsWith('200 ended')")
            assert await tab.ask("document.getElementById('token-form').hidden")
            # A link may carry it, out of the server's logs; the page takes it out of sight.
            await tab.open("about:blank")
            await tab.open(url + "/#token=sesame")
            await tab.until("document.getElementById('rate-note')?.textContent.startsWith('200 ended')")
            await tab.until("location.hash === ''")

    asyncio.run(scenario())


def test_the_view_of_the_application_is_offered_only_where_there_is_one(chromium):
    own = realistic_records(40)
    mine = [
        msgspec.structs.replace(one, vantage="application", request_id=f"app-{number}")
        for number, one in enumerate(realistic_records(9, seed=3))
    ]
    source = ListSource([*own, *mine], busy_live())
    hidden = "document.getElementById('vantage-choice').hidden"
    first_row = "(document.querySelector('#slowest tbody tr') || {textContent: ''}).textContent"

    async def look(tab: Tab) -> None:
        await tab.until(f"{first_row} !== ''")
        assert await tab.ask(hidden) is True
        source.now = {**source.now, "applications": 9}
        await tab.until(f"{hidden} === false")
        assert "app-" not in await tab.ask("document.getElementById('slowest').textContent")
        await tab.ask(
            "(() => { const choice = document.getElementById('vantage'); choice.value = 'application';"
            " choice.dispatchEvent(new Event('change')); })()"
        )
        await tab.until("document.querySelectorAll('#slowest tbody tr').length === 9")
        assert "app-" in await tab.ask("document.getElementById('slowest').textContent")

    watch(chromium, source, look)
