"""Debian's Chromium, driven over WebDriver (https://www.w3.org/TR/webdriver2/), and a server of empty pages for it."""

from __future__ import annotations

import base64
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import httpx

from tests.support.components import require_command

TIMEOUT_S = 120
_KEYS = {"Enter": "\ue007", "Tab": "\ue004", "Shift": "\ue008", "Control": "\ue009", "Escape": "\ue00c", "Space": " "}
"""Names of keys -> their characters in WebDriver."""
_ERRORS = {"TypeError", "ReferenceError", "SyntaxError"}
"""Names of what `until` takes for "not yet": an element that is not there."""
_STARTS_MAX = 5
"""Attempts to start chromedriver, each with another port."""
_STARTED = re.compile(r"started successfully on port (\d+)")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--disable-features=HttpsUpgrades,HttpsFirstBalancedModeAutoEnable",
    # The owner of a name decides where it leads: these lead to this machine, as one does after DNS rebinding.
    "--host-resolver-rules=MAP *.example 127.0.0.1",
)


class Browser:
    """One window. Scripts run in the page that it shows."""

    def __init__(self, driver: httpx.Client, session: str) -> None:
        self._driver = driver
        self._session = session

    def show(self, url: str) -> str:
        """Goes to an address as if it had been typed in; the text of the page."""
        self._command("url", {"url": url})
        return self.text()

    def text(self) -> str:
        """The text of the page."""
        return str(self._command("execute/sync", {"script": "return document.body.innerText", "args": []}))

    def run(self, script: str, *arguments: object) -> Any:
        """What the body of an async function returns, or the name of what it throws; its arguments are `$`."""
        wrapped = (
            "const $ = [...arguments], done = $.pop();"
            f"(async () => {{ {script} }})().then(done, error => done(error.name))"
        )
        return self._command("execute/async", {"script": wrapped, "args": arguments})

    def leave(self, script: str, *arguments: object) -> str:
        """Runs a script that takes the window to another page; the text of that one."""
        script = f"const $ = arguments; window.old = true; {script}"
        self._command("execute/sync", {"script": script, "args": arguments})
        deadline = time.monotonic() + TIMEOUT_S
        while self._command("execute/sync", {"script": "return !!window.old || document.readyState != 'complete'"}):
            assert time.monotonic() < deadline, "the page did not change"
        return self.text()

    def until(self, script: str, *arguments: object) -> Any:
        """What the body of a function returns, once that is true; as `run`, also while the window goes to another page,
        where an async function might never end."""
        wrapped = f"const $ = [...arguments]; try {{ {script} }} catch (error) {{ return error.name }}"
        begun = time.monotonic()
        while True:
            found = self._command("execute/sync", {"script": wrapped, "args": arguments})
            if found and found not in _ERRORS:
                return found
            waited_s = time.monotonic() - begun
            assert waited_s < TIMEOUT_S, f"{script} {arguments}: {found!r} on {self.text()!r}"
            time.sleep(min(max(0.02, waited_s / 10), 0.2))  # a look costs the browser some milliseconds

    def press(self, *keys: str) -> None:
        """Presses keys one after the other, as a person does. Names that are joined by + are held together:
        ``Control+Enter``."""
        steps: list[dict[str, str]] = []
        for key in keys:
            held = [_KEYS.get(name, name) for name in (key.split("+") if len(key) > 1 else [key])]
            steps += [{"type": "keyDown", "value": name} for name in held]
            steps += [{"type": "keyUp", "value": name} for name in reversed(held)]
        self._command("actions", {"actions": [{"type": "key", "id": "keyboard", "actions": steps}]})

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Shows the page as on a screen of that size, in light or dark colours."""
        mobile = width < 640
        self._cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._cdp("Emulation.setEmulatedMedia", features=[scheme])

    def speak(self, languages: str) -> None:
        """Prefers languages, such as "de-DE,de", in the pages that are loaded from now on."""
        agent = self.run("return navigator.userAgent")
        self._cdp("Emulation.setUserAgentOverride", userAgent=agent, acceptLanguage=languages)

    def offline(self, away: bool) -> None:
        """Cuts the browser's network, or restores it. Open WebSockets stay."""
        self._cdp("Network.enable")
        self._cdp(
            "Network.emulateNetworkConditions", offline=away, latency=0, downloadThroughput=-1, uploadThroughput=-1
        )

    def cookies(self) -> list[dict[str, Any]]:
        """Those of the page, also such that scripts cannot read."""
        return list(self._cdp("Network.getCookies")["cookies"])

    def before_each_page(self, script: str) -> None:
        """Runs a script in every page that is loaded from now on, before its own."""
        self._cdp("Page.addScriptToEvaluateOnNewDocument", source=script)

    def metrics(self) -> dict[str, float]:
        """Chromium's figures of the page, such as TaskDuration: seconds that its main thread was busy."""
        self._cdp("Performance.enable")
        return {one["name"]: one["value"] for one in self._cdp("Performance.getMetrics")["metrics"]}

    def screenshot(self, path: Path) -> None:
        """What the window shows, as PNG."""
        path.parent.mkdir(parents=True, exist_ok=True)
        answer = self._driver.get(f"/session/{self._session}/screenshot")
        path.write_bytes(base64.b64decode(answer.json()["value"]))

    def _cdp(self, command: str, **parameters: object) -> Any:
        return self._command("goog/cdp/execute", {"cmd": command, "params": parameters})

    def _command(self, name: str, body: dict[str, object]) -> Any:
        answer = self._driver.post(f"/session/{self._session}/{name}", json={"args": [], **body})
        value = answer.json()["value"]
        assert answer.status_code == 200, value
        return value


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """A browser with a profile of its own, until left. flags: further ones of its command."""
    binary = require_command("chromium")
    with (
        TemporaryDirectory() as profile,
        _chromedriver() as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S, trust_env=False) as driver,
    ):
        options = {"binary": binary, "args": [*_FLAGS, *flags, f"--user-data-dir={profile}"]}
        wanted = {"browserName": "chrome", "timeouts": {"script": 1000 * TIMEOUT_S}, "goog:chromeOptions": options}
        begun = driver.post("/session", json={"capabilities": {"alwaysMatch": wanted}}).json()["value"]
        assert "sessionId" in begun, begun
        try:
            yield Browser(driver, begun["sessionId"])
        finally:
            driver.delete(f"/session/{begun['sessionId']}")


@contextmanager
def _chromedriver() -> Iterator[int]:
    """A chromedriver; its port. It takes a free IPv6 port, ends if the IPv4 one is taken, and is then started anew."""
    command = [require_command("chromedriver"), "--port=0"]
    for _ in range(_STARTS_MAX):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                started = next(filter(None, map(_STARTED.search, process.stdout)), None)
                if started is not None:
                    yield int(started[1])
                    return
            finally:
                process.terminate()
    raise AssertionError(f"chromedriver did not start in {_STARTS_MAX} attempts")


class _Empty(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<!doctype html><title>page</title>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def pages() -> Iterator[int]:
    """Serves an empty page at every path and under every name; the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Empty)
    thread = Thread(target=server.serve_forever, name="pages")
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
