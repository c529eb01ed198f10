# ruff: noqa: ASYNC240  (a test reads two small files)
"""Headless Chromium, driven over its DevTools WebSocket: just enough for looking at our own page."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import aiohttp

START_S = 30.0
"""A cold Chromium on a busy two-core machine needs several seconds."""


class Tab:
    """One page of the browser: what it logged, what it requested, and ways to ask and act."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._next = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.problems: list[str] = []
        """Console errors and warnings, uncaught exceptions, refused loads (CSP)."""
        self.requests: list[str] = []
        self.not_modified = 0
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            body = message.json()
            if "id" in body:
                future = self._waiting.pop(body["id"], None)
                if future is not None and not future.done():
                    future.set_result(body)
            else:
                self._event(body["method"], body["params"])

    def _event(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Network.responseReceivedExtraInfo" and params.get("statusCode") == 304:
            self.not_modified += 1
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(arg.get("value", arg.get("description"))) for arg in params["args"]))
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            entry = params["entry"]
            self.problems.append(f"{entry['text']} {entry.get('url', '')}")

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one DevTools command and wait for its answer."""
        self._next += 1
        number = self._next
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        await self._socket.send_json({"id": number, "method": method, "params": params})
        answer = await asyncio.wait_for(future, 30)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression (promises are awaited)."""
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    async def until(self, expression: str, seconds: float = 20.0) -> None:
        """Wait until the expression is truthy; fails with the page's text where it never is."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            with contextlib.suppress(RuntimeError):
                if await self.ask(f"Boolean({expression})"):
                    return
            if asyncio.get_running_loop().time() > deadline:
                text = await self.ask("document.body ? document.body.innerText : ''")
                raise AssertionError(f"never became true: {expression}\n{self.problems}\n{text[:2000]}")
            await asyncio.sleep(0.1)

    async def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )

    async def scheme(self, name: str) -> None:
        """`light` or `dark`, as the operating system would say it."""
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    async def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                text="\r" if key == "Enter" and kind == "keyDown" else "",
            )  # fmt: skip

    async def drag(self, x: float, y: float, to_x: float) -> None:
        """Press at (x, y), move sideways to `to_x`, let go."""
        for kind, at in (
            ("mousePressed", x),
            ("mouseMoved", (x + to_x) / 2),
            ("mouseMoved", to_x),
            ("mouseReleased", to_x),
        ):
            await self.call("Input.dispatchMouseEvent", type=kind, x=at, y=y, button="left", buttons=1, clickCount=1)

    async def picture(self, path: Path) -> None:
        """A screenshot of the whole document."""
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    async def close(self) -> None:
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader


class Browser:
    """A Chromium process with a throw-away profile; ended and awaited on exit."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, session: aiohttp.ClientSession) -> None:
        self._process = process
        self._port = port
        self._session = session

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, path: str) -> AsyncIterator[Self]:
        with tempfile.TemporaryDirectory(prefix="tailrace-browser-", ignore_cleanup_errors=True) as profile:
            process = await asyncio.create_subprocess_exec(
                path,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-extensions",
                "--remote-debugging-port=0",
                f"--user-data-dir={profile}",
                "about:blank",
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                port = await cls._port_of(Path(profile) / "DevToolsActivePort")
                async with aiohttp.ClientSession() as session:
                    yield cls(process, port, session)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), 10)
                except TimeoutError:
                    process.kill()
                    await process.wait()

    @staticmethod
    async def _port_of(path: Path) -> int:
        for _ in range(int(START_S / 0.05)):
            if path.exists() and path.read_text().count("\n"):
                return int(path.read_text().splitlines()[0])
            await asyncio.sleep(0.05)
        raise TimeoutError("the browser did not open its DevTools port")

    @contextlib.asynccontextmanager
    async def tab(self) -> AsyncIterator[Tab]:
        async with self._session.put(f"http://127.0.0.1:{self._port}/json/new?about:blank") as answer:
            target = await answer.json(content_type=None)
        async with self._session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=64 << 20) as socket:
            tab = Tab(socket)
            try:
                for domain in ("Page", "Runtime", "Network", "Log"):
                    await tab.call(f"{domain}.enable")
                yield tab
            finally:
                await tab.close()
                await self._session.get(f"http://127.0.0.1:{self._port}/json/close/{target['id']}")
