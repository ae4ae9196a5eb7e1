"""Debian's Chromium, driven over WebDriver (https://www.w3.org/TR/webdriver2/), and a server of empty pages for it."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import httpx

from tests.support.components import require_command

TIMEOUT_S = 120
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

    def _command(self, name: str, body: dict[str, object]) -> Any:
        answer = self._driver.post(f"/session/{self._session}/{name}", json={"args": [], **body})
        value = answer.json()["value"]
        assert answer.status_code == 200, value
        return value


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own, until left."""
    binary = require_command("chromium")
    command = [require_command("chromedriver"), "--port=0"]
    with (
        TemporaryDirectory() as profile,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
        httpx.Client(timeout=TIMEOUT_S, trust_env=False) as driver,
    ):
        try:
            assert process.stdout is not None
            found = (_STARTED.search(line) for line in process.stdout)
            driver.base_url = httpx.URL(f"http://127.0.0.1:{next(filter(None, found))[1]}")
            options = {"binary": binary, "args": [*_FLAGS, f"--user-data-dir={profile}"]}
            wanted = {"browserName": "chrome", "timeouts": {"script": 1000 * TIMEOUT_S}, "goog:chromeOptions": options}
            begun = driver.post("/session", json={"capabilities": {"alwaysMatch": wanted}}).json()["value"]
            assert "sessionId" in begun, begun
            try:
                yield Browser(driver, begun["sessionId"])
            finally:
                driver.delete(f"/session/{begun['sessionId']}")
        finally:
            process.terminate()


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
