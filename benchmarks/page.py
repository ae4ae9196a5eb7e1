"""The web page of a site with many streams, in Chromium: frames per second, its first view, and its cost.

Readings come over a real mosquitto. The gateway runs with its adapters in one process. Chromium takes processor time
from the gateway, so the gateway's cost is processor time with the page open, minus that without.
"""

import itertools
import shutil
import statistics
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.effort import Effort
from benchmarks.gateway_process import Gateway, gateway_on_known_ports
from benchmarks.measuring import Progress, target
from benchmarks.mqtt import Publisher, broker
from lamplighter.gateway.page.assets import built_assets
from tests.support.chromium import Browser, chromium

PER_S = 100
STREAMS_EACH = 10
"""Streams of one room."""
_RULE = """[[stream]]
topic = "bench/{room}/{n}"
payload = "number"
property = "http://bench.example/value{n}"
sensor = "sensor/{room}/{n}"
feature = "room/{room}"
"""
_FIRST_VIEW = """
const look = () => {
    if (document.querySelectorAll("li.row").length >= STREAMS) window.shownAt = performance.now();
    else requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
"""Notes when all streams are shown, in milliseconds since the navigation began."""
_CHANGED = """
const now = [...document.querySelectorAll(".value")].map((one) => one.textContent);
return now.filter((text, number) => text !== window.former[number]).length >= now.length / 2;
"""
"""Whether the page is live: most rows show another value than before."""
_FRAMES = """
const seconds = $[0], times = [];
await new Promise((done) => {
    const frame = (now) => {
        times.push(now);
        if (now - times[0] < 1000 * seconds) requestAnimationFrame(frame); else done();
    };
    requestAnimationFrame(frame);
});
return times;
"""


class Readings:
    """Publishes 100 readings a second, of all streams in turn, until closed."""

    def __init__(self, port: int, streams: int) -> None:
        self._publisher = Publisher(port)
        self._topics = [f"{n // STREAMS_EACH}/{n % STREAMS_EACH}" for n in range(streams)]
        self._publisher.publish([(topic, 0) for topic in self._topics])
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._publisher.close()

    def _run(self) -> None:
        value = 0
        while not self._over.is_set():
            names = [self._topics[number % len(self._topics)] for number in range(value, value + PER_S)]
            self._publisher.publish([(name, value + number) for number, name in enumerate(names)], PER_S)
            value += PER_S


def page(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """A page that shows all streams, beside readings; the gateway alone and with the page, in turns."""
    if built_assets() is None:
        return {"unavailable": "the page is not built; run gateway/page/build.sh"}
    if not all(map(shutil.which, ("mosquitto", "chromium", "chromedriver"))):
        return {"unavailable": "mosquitto, chromium and chromedriver are not installed"}
    streams, seconds = effort.page_streams, effort.page_s
    with TemporaryDirectory() as temporary, broker(Path(temporary)) as port:
        folder = Path(temporary)
        (folder / "mapping").mkdir()
        (folder / "mapping" / "rooms.toml").write_text(_RULE)
        mqtt = {"host": "127.0.0.1", "port": port}
        with (
            gateway_on_known_ports(folder, "--all", mqtt=mqtt, coap={"enabled": False}) as gateway,
            chromium() as browser,
        ):
            readings = Readings(port, streams)
            try:
                return _measured(gateway, browser, streams, seconds, effort.page_turns, progress)
            finally:
                readings.close()


def _measured(
    gateway: Gateway, browser: Browser, streams: int, seconds: float, turns: int, progress: Progress
) -> dict[str, Any]:
    host, port = gateway.http
    browser.look(1280, 860)
    browser.before_each_page(_FIRST_VIEW.replace("STREAMS", str(streams)))
    alone, costs, views, rates, slowest, busy = [], [], [], [], [], []
    for _ in range(turns):
        browser.show("about:blank")
        before, begun = gateway.cpu_s(), time.monotonic()
        time.sleep(seconds)
        alone.append((gateway.cpu_s() - before) / (time.monotonic() - begun) * 100)
        browser.show(f"http://{host}:{port}/page/now")
        views.append(browser.until("return window.shownAt"))
        browser.run("window.former = [...document.querySelectorAll('.value')].map((one) => one.textContent)")
        main_before, before, begun = browser.metrics()["TaskDuration"], gateway.cpu_s(), time.monotonic()
        times = browser.run(_FRAMES, seconds)
        elapsed = time.monotonic() - begun
        costs.append((gateway.cpu_s() - before) / elapsed * 100 - alone[-1])
        busy.append((browser.metrics()["TaskDuration"] - main_before) / elapsed * 100)
        browser.until(_CHANGED)
        gaps = [after - one for one, after in itertools.pairwise(times)]
        rates.append(1000 * len(gaps) / sum(gaps))
        slowest.append(sorted(gaps)[int(0.99 * len(gaps))])
        progress(
            f"first view {views[-1]:.0f} ms; {rates[-1]:.0f} frames/s, p99 {slowest[-1]:.0f} ms; page's main thread "
            f"{busy[-1]:.0f} %; gateway {alone[-1]:.1f} % of a core, with the page {costs[-1]:+.1f} %"
        )
    rate, cost, view = map(statistics.median, (rates, costs, views))
    return {
        "streams": streams,
        "frames per second": rates,
        "p99 of a frame, ms": slowest,
        "first view ms": views,
        "page's main thread, % of a core": busy,
        "gateway without the page, % of a core": alone,
        "page's part, % of a core": costs,
        "targets": [
            target(f"page of {streams:,} streams: frames per second", rate, 30, at_least=True),
            target("cost of the page for the gateway", cost, 10, "% of a core"),
            target("first view of the page", view, 1000, "ms"),
        ],
    }
