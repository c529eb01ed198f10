"""The page's routes over a real socket: caching, compression, policy, bounded work, hostile queries."""

from __future__ import annotations

import asyncio
import gzip
import re
import threading
import time
from typing import Any

import aiohttp
import msgspec
import pytest

from tailrace.figures.palette import STAGE_COLORS
from tailrace.model.errors import StoreError
from tailrace.store.table import RecordTable
from tailrace.web.assets import plotly_path
from tests.web.serving import served
from tests.web.traffic import ListSource, busy_live, realistic_records


def session() -> aiohttp.ClientSession:
    # Bodies as they travel: the tests look at the compression themselves.
    return aiohttp.ClientSession(auto_decompress=False, headers={"Accept-Encoding": "identity"})


def test_the_document_names_its_files_by_content_and_no_other_host():
    async def scenario() -> None:
        async with served(ListSource([])) as url, session() as http:
            async with http.get(url + "/") as answer:
                assert answer.status == 200
                assert answer.content_type == "text/html"
                text = await answer.text()
                policy = answer.headers["Content-Security-Policy"]
            assert "{{" not in text
            assert "http://" not in text
            assert "https://" not in text
            assert "<script>" not in text
            assert "default-src 'none'" in policy
            assert "script-src 'self';" in policy
            assert "unsafe-eval" not in policy
            linked = re.findall(r'(?:src|href)="(/page/[^"]+)"', text)
            assert {link.split("?")[0] for link in linked} == {
                "/page/icon.svg", "/page/style.css", "/page/app.js", "/page/plotly.js",
            }  # fmt: skip
            for link in linked:
                async with http.get(url + link) as answer:
                    assert answer.status == 200, link
                    assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable", link
                    assert answer.headers["X-Content-Type-Options"] == "nosniff"
                    tag = answer.headers["ETag"]
                async with http.get(url + link, headers={"If-None-Match": tag}) as answer:
                    assert answer.status == 304, link
                    assert await answer.read() == b""

    asyncio.run(scenario())


def test_every_module_that_a_script_imports_is_served():
    async def scenario() -> None:
        seen: set[str] = set()
        waiting = ["/page/app.js"]
        async with served(ListSource([])) as url, session() as http:
            while waiting:
                path = waiting.pop()
                seen.add(path)
                async with http.get(url + path) as answer:
                    assert answer.status == 200, path
                    assert answer.content_type == "text/javascript"
                    # Without a version in its URL, a file is looked up again each time.
                    assert answer.headers["Cache-Control"] == "no-cache"
                    text = await answer.text()
                assert "innerHTML" not in text
                assert "insertAdjacentHTML" not in text
                found = re.findall(r'from "\./([^"]+)"', text)
                waiting += [f"/page/{name}" for name in found if f"/page/{name}" not in seen]
        assert seen == {"/page/app.js", "/page/charts.js", "/page/shrink.js", "/page/tables.js", "/page/text.js"}

    asyncio.run(scenario())


def test_the_bundle_is_the_installed_one_and_travels_compressed():
    async def scenario() -> None:
        async with served(ListSource([])) as url, session() as http:
            async with http.get(f"{url}/page/plotly.js", headers={"Accept-Encoding": "br, gzip"}) as answer:
                assert answer.headers["Content-Encoding"] == "gzip"
                assert answer.headers["Vary"] == "Accept-Encoding"
                packed = await answer.read()
            assert len(packed) < 2_000_000
            assert gzip.decompress(packed) == plotly_path().read_bytes()
            async with http.get(f"{url}/page/plotly.js", headers={"Accept-Encoding": "gzip;q=0"}) as answer:
                assert "Content-Encoding" not in answer.headers
                assert len(await answer.read()) == plotly_path().stat().st_size

    asyncio.run(scenario())


def test_the_style_sheet_has_the_figures_colours():
    async def scenario() -> None:
        async with served(ListSource([])) as url, session() as http, http.get(f"{url}/page/style.css") as answer:
            text = await answer.text()
        for theme, colors in STAGE_COLORS.items():
            block = re.search(rf':root\[data-theme="{theme}"\]{{(--stage[^}}]+)}}', text)
            assert block is not None
            for stage, color in colors.items():
                assert f"--stage-{stage}:{color};" in block[1]

    asyncio.run(scenario())


def test_a_view_answers_first_and_revalidates():
    source = ListSource(realistic_records(1500), busy_live())

    async def scenario() -> None:
        async with served(source) as url, session() as http:
            async with http.get(f"{url}/page/view?window=5m") as answer:
                view = await answer.json()
                tag = answer.headers["ETag"]
            assert view["summary"]["n"] == len(source.records)  # all ended within the window
            assert view["metric"] == "ttft"
            assert view["summary"]["metrics"]["ttft_ms"]["n"] > 1300
            assert view["summary"]["metrics"]["ttft_ms"]["p99"] > view["summary"]["metrics"]["ttft_ms"]["p50"]
            assert view["summary"]["requests_per_s"] == pytest.approx(1500 / 300, rel=0.01)
            assert [picture["name"] for picture in view["pictures"]] == ["stages", "lengths", "failures"]
            assert view["lanes"] == ["interactive", "long_document"]
            slowest = [row["ttft_ms"] for row in view["slowest"]]
            assert slowest == sorted(slowest, reverse=True)
            for row in view["slowest"]:
                assert sum(ms for _, ms in row["stages"]) == pytest.approx(row["e2e_ms"], abs=0.01)
            async with http.get(f"{url}/page/view?window=5m", headers={"If-None-Match": tag}) as answer:
                assert answer.status == 304

    asyncio.run(scenario())


def test_windows_and_lanes_choose():
    now = time.time_ns()
    old = realistic_records(200, seed=2, now_unix_ns=now - 2000 * 10**9, span_s=100)
    new = realistic_records(300, seed=3, now_unix_ns=now - 5 * 10**9, span_s=30)

    async def scenario() -> None:
        async with served(ListSource(old + new)) as url, session() as http:
            counts = {}
            for window in ("1m", "5m", "1h", "all"):
                async with http.get(f"{url}/page/view?window={window}") as answer:
                    counts[window] = (await answer.json())["summary"]["n"]
            assert counts == {"1m": 300, "5m": 300, "1h": 500, "all": 500}
            async with http.get(f"{url}/page/view?window=all&lane=long_document&metric=e2e") as answer:
                view = await answer.json()
            assert view["summary"]["n"] == sum(record.lane == "long_document" for record in old + new)
            assert {row["lane"] for row in view["slowest"]} == {"long_document"}
            # The filter must not take away the other choices.
            assert view["lanes"] == ["interactive", "long_document"]

    asyncio.run(scenario())


def test_a_quiet_gateway_is_not_an_error():
    async def scenario() -> None:
        async with served(ListSource([], {})) as url, session() as http:
            async with http.get(f"{url}/page/view") as answer:
                view = await answer.json()
            assert view["summary"]["n"] == 0
            assert view["summary"]["metrics"]["ttft_ms"] == {
                "n": 0, "p50": None, "p95": None, "p99": None, "max": None, "p99_needs": 500,
            }  # fmt: skip
            assert all(picture["empty"] for picture in view["pictures"])
            async with http.get(f"{url}/page/live") as answer:
                assert answer.headers["Cache-Control"] == "no-store"
                live = await answer.json()
            assert live["streams"] == []
            assert "in_flight" not in live  # not known is not zero

    asyncio.run(scenario())


@pytest.mark.parametrize("query", ["window=2y", "metric=__proto__", "lane=" + "x" * 201])
def test_a_bad_choice_is_refused_in_a_sentence(query):
    async def scenario() -> None:
        async with served(ListSource([])) as url, session() as http:
            async with http.get(f"{url}/page/view?{query}") as answer:
                assert answer.status == 400
                body = await answer.json()
            assert body["error"].endswith(".")

    asyncio.run(scenario())


def test_one_request_in_detail_and_an_unknown_one():
    records = realistic_records(400)
    kept = next(record for record in records if record.timeline is not None and record.timeline.at_ns)

    async def scenario() -> None:
        async with served(ListSource(records)) as url, session() as http:
            async with http.get(f"{url}/page/request/{kept.request_id}?theme=dark") as answer:
                detail = await answer.json()
            assert detail["request"]["id"] == kept.request_id
            whole = [row for row in detail["stages"] if "." not in row["stage"]]
            assert sum(row["ms"] for row in whole) == pytest.approx(kept.e2e_ns / 1e6)
            assert all(row["source"] for row in detail["stages"])
            assert detail["picture"]["data"]
            async with http.get(f"{url}/page/request/nobody%2F..%2Fx") as answer:
                assert answer.status == 404
                assert "in flight" in (await answer.json())["error"]

    asyncio.run(scenario())


class SlowSource(ListSource):
    """Counts how many reads run at once."""

    def __init__(self, records):
        super().__init__(records)
        self.running = 0
        self.most = 0

    async def table(self, since_unix_ns: int | None, limit: int, vantage: str = "gateway") -> RecordTable:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.05)
        self.running -= 1
        return await super().table(since_unix_ns, limit)


def test_many_viewers_cost_one_read_and_one_build():
    source = SlowSource(realistic_records(300))

    async def scenario() -> None:
        async with served(source, refresh_s=30) as url, session() as http:

            async def look(query: str) -> int:
                async with http.get(f"{url}/page/view?{query}") as answer:
                    await answer.read()
                    return answer.status

            assert set(await asyncio.gather(*(look("window=5m") for _ in range(20)))) == {200}
            assert source.reads == 1
            # Another lane, metric or theme of the same window needs no other read.
            await asyncio.gather(*(look(f"window=5m&metric={metric}") for metric in ("ttft", "tpot", "e2e")))
            assert source.reads == 1
            await look("window=1m")
            assert source.reads == 2
            assert source.most == 1

    asyncio.run(scenario())


def test_the_cache_is_bounded_whatever_is_asked():
    from tailrace.web.selection import Selection
    from tailrace.web.views import KEPT, Views

    async def scenario() -> None:
        views = Views(ListSource(realistic_records(20)), unix_ns=time.time_ns, refresh_s=60)
        for number in range(KEPT * 3):
            await views.get(Selection(lane=f"lane-{number}"))
        assert len(views._kept) == KEPT
        assert len(views._tables) == 1
        views.close()

    asyncio.run(scenario())


def test_views_are_built_off_the_loop(monkeypatch):
    from tailrace.web import views as module

    threads = []
    build = module.build_view

    def watched(*args, **kwargs):
        threads.append(threading.current_thread())
        return build(*args, **kwargs)

    monkeypatch.setattr(module, "build_view", watched)

    async def scenario() -> None:
        async with served(ListSource(realistic_records(50))) as url, session() as http:
            for window in ("1m", "5m", "1h"):
                async with http.get(f"{url}/page/view?window={window}") as answer:
                    assert answer.status == 200

    asyncio.run(scenario())
    assert len(threads) == 3
    assert threading.main_thread() not in threads
    assert len({thread.name for thread in threads}) == 1  # one worker, however many views


def test_rows_left_out_are_said():
    async def scenario() -> None:
        source = ListSource(realistic_records(300))
        async with (
            served(source, rows=100) as url,
            session() as http,
            http.get(f"{url}/page/view?window=all") as answer,
        ):
            view = await answer.json()
        assert view["limited_to"] == 100
        assert view["summary"]["n"] == 100

    asyncio.run(scenario())


def test_only_the_oldest_requests_in_flight_travel():
    live = busy_live()
    live["streams"] = [{"request_id": str(age), "age_ms": float(age)} for age in range(5000)]

    async def scenario() -> None:
        async with served(ListSource([], live)) as url, session() as http, http.get(f"{url}/page/live") as answer:
            body = await answer.json()
        assert [stream["age_ms"] for stream in body["streams"]] == [4999.0 - n for n in range(12)]
        assert body["in_flight"] == 31

    asyncio.run(scenario())


def test_records_that_cannot_be_read_are_said():
    class Broken(ListSource):
        async def table(self, since_unix_ns: int | None, limit: int, vantage: str = "gateway") -> RecordTable:
            raise StoreError("the records directory is gone")

    async def scenario() -> None:
        async with served(Broken([])) as url, session() as http, http.get(f"{url}/page/view") as answer:
            assert answer.status == 503
            assert (await answer.json())["error"] == "the records directory is gone"

    asyncio.run(scenario())


def test_requests_as_a_service_reports_them_are_a_view_of_their_own():
    async def scenario() -> None:
        records = realistic_records(50)
        mine = [
            msgspec.structs.replace(
                one,
                vantage="application",
                request_id=f"app-{number}",
                service="rag",
                decode_ns=None,
                model_ns=one.decode_ns,
            )
            for number, one in enumerate(realistic_records(7, seed=2))
        ]
        same = msgspec.structs.replace(mine[0], request_id=records[0].request_id, parts_ns={"preprocess.retrieval": 1})
        source = ListSource([*records, *mine, same])
        async with served(source) as url, aiohttp.ClientSession() as http:

            async def view(path: str, status: int = 200) -> dict[str, Any]:
                async with http.get(f"{url}/page/{path}") as answer:
                    assert answer.status == status, path
                    return await answer.json()

            assert (await view("view?window=all"))["summary"]["n"] == 50
            assert (await view("view?window=all&vantage=application"))["summary"]["n"] == 8
            assert (await view("view?window=all&vantage=gateway"))["summary"]["n"] == 50
            assert (await view("view?window=all"))["metric"] == "ttft"
            seen = await view("view?window=all&vantage=application")
            assert seen["metric"] == "e2e", "its model's stage is on both sides of the first byte"
            await view("view?vantage=other", 400)
            detail = await view(f"request/{same.request_id}?vantage=application")
            assert "preprocess.retrieval" in {row["stage"] for row in detail["stages"]}
            assert ["service", "rag"] in detail["facts"]
            detail = await view(f"request/{same.request_id}?vantage=gateway")
            assert "preprocess.retrieval" not in {row["stage"] for row in detail["stages"]}

    asyncio.run(scenario())
