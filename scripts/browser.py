"""A real browser without a window, told what to do by the protocol of its own developer tools."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--remote-debugging-port=0")
SECONDS = 30.0


class BrowserError(Exception):
    """The browser is not there, or the page has failed."""


def program() -> str:
    """The browser of this machine; raises BrowserError."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise BrowserError("there is no Chromium: apt-get install chromium-headless-shell fonts-dejavu-core")
    return found


class Tab:
    """One tab; what the page tells of errors is in `complaints`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session = ""
        self.complaints: list[str] = []

    async def open(self, url: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
        await self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])
        for one in ("about:blank", url):  # else another # would not load it again
            await self.send("Page.navigate", url=one)
        await self.until("document.readyState == 'complete'")

    async def run(self, script: str) -> Any:
        """What an expression comes to in the page."""
        given = {"expression": script, "returnByValue": True, "awaitPromise": True}
        found = await self.send("Runtime.evaluate", **given)
        if "exceptionDetails" in found:
            raise BrowserError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    async def until(self, script: str, seconds: float = SECONDS) -> Any:
        """The same, once it is true; raises BrowserError with what the page shows instead."""
        try:
            async with asyncio.timeout(seconds):
                while not (found := await self.run(script)):  # noqa: ASYNC110 - a page tells nobody
                    await asyncio.sleep(0.05)
                return found
        except TimeoutError:
            shown = await self.run("document.body.innerText")
            raise BrowserError(f"it does not come to {script}; the page: {shown}; {self.complaints}") from None

    async def key(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        await self.send("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **text)
        await self.send("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    async def picture(self) -> bytes:
        """What is seen, as PNG."""
        found = await self.send("Page.captureScreenshot", format="png")
        return base64.b64decode(found["data"])

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        number = len(self._answers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        session = {"sessionId": self._session} if self._session else {}
        await self._socket.send_json({"id": number, "method": method, "params": params, **session})
        async with asyncio.timeout(SECONDS):
            return await answer

    async def attach(self) -> None:
        target = await self.send("Target.createTarget", url="about:blank")
        found = await self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self.send(f"{domain}.enable")

    async def listen(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                answer = self._answers[said["id"]]
                if "error" in said:
                    answer.set_exception(BrowserError(str(said["error"])))
                elif not answer.done():
                    answer.set_result(said["result"])
            elif said["method"] == "Log.entryAdded":
                self.complaints.append(said["params"]["entry"]["text"])
            elif said["method"] == "Runtime.exceptionThrown":
                self.complaints.append(str(said["params"]["exceptionDetails"]))


@asynccontextmanager
async def browser() -> AsyncGenerator[Tab]:
    """A browser of its own with one tab, which ends with it."""
    as_root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            *(program(), *FLAGS, *as_root, f"--user-data-dir={folder}", "about:blank"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            address = await _address(Path(folder) / "DevToolsActivePort")
            async with aiohttp.ClientSession() as session:
                socket = await session.ws_connect(address, max_msg_size=0)
                tab = Tab(socket)
                listening = asyncio.create_task(tab.listen())
                try:
                    await tab.attach()
                    yield tab
                finally:
                    listening.cancel()
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # all of its processes: they would outlive the first
            await process.wait()


async def _address(written: Path) -> str:
    """Where it listens, as it writes it down."""
    async with asyncio.timeout(SECONDS):
        while "\n" not in (said := await asyncio.to_thread(_content, written)):  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.05)
    port, path = said.split("\n")[:2]
    return f"ws://127.0.0.1:{port}{path}"


def _content(file: Path) -> str:
    return file.read_text() if file.exists() else ""
