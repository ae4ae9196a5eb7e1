"""Makes the pictures of the documents, docs/images (`make screenshots`): Chromium shows the page of a running demo, and
the report of a simulated fleet; drawings are made from their descriptions."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from tests.drawings import draw
from tests.support.chromium import Browser, chromium
from tests.support.commands import command_line
from tests.support.places import ROOT

IMAGES = ROOT / "docs" / "images"
STREET_SIZE, NOW_SIZE, PHONE_SIZE, REPORT_SIZE = (1160, 470), (1160, 760), (390, 760), (1160, 760)
CAPTURE_S, FRAME_S = 10.0, 0.4
_SETTINGS = """[gateway]
clock_trusted = "always"
[http]
port = 0
[websocket]
port = 0
"""
_BEGINS = """
return document.querySelectorAll(".lit").length >= 2 && document.querySelectorAll(".offers button").length == 3
    && [...document.querySelectorAll("nav a")].some((link) => link.innerText.trim() == "Street")
"""
_MUCH_HAPPENS = """
const count = (selector) => document.querySelectorAll(selector).length;
return count(".lit") >= 4 && count(".present") == 1 && count(".countdown") >= 3 && !document.getAnimations().length
"""
_VALUES = """
const lit = [...document.querySelectorAll(".card")].slice(0, 6).filter((card) => card.querySelector(".on"));
return lit.length >= 3 && document.querySelectorAll(".spark polyline").length >= 10
"""


@contextmanager
def demo() -> Iterator[str]:
    """The address of the street of a demo, until left."""
    with TemporaryDirectory() as folder:
        settings = Path(folder) / "lamplighter.toml"
        settings.write_text(_SETTINGS)
        command = command_line("demo", "--no-browser", "--config", settings)
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            found = (re.search(r"street +(http\S+)", line) for line in process.stdout)
            yield next(filter(None, found))[1]
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()


def frame(browser: Browser, scratch: Path) -> Image.Image:
    browser.screenshot(scratch)
    return Image.open(io.BytesIO(scratch.read_bytes())).convert("RGB")


def capture(browser: Browser, scratch: Path) -> tuple[list[Image.Image], list[int]]:
    """Frames of `CAPTURE_S`, and how many milliseconds each is shown."""
    frames, times = [], []
    end = time.monotonic() + CAPTURE_S
    while (began := time.monotonic()) < end:
        times.append(began)
        frames.append(frame(browser, scratch))
        time.sleep(max(0.0, began + FRAME_S - time.monotonic()))
    shown = [round(1000 * (after - before)) for before, after in zip(times, [*times[1:], end], strict=True)]
    return frames, shown


def report(folder: Path) -> Path:
    """The report of a simulated fleet."""
    shipped, lake = folder / "fleet", folder / "lake"
    for arguments in (
        ("simulate", shipped, "--gateways", "12", "--days", "1", "--seed", "3"),
        ("collect", shipped / "shipped", lake),
        ("ingest", lake, "--engine", "local"),
        ("silver", lake, "--engine", "local"),
        ("report", lake, "--engine", "local"),
    ):
        subprocess.run(
            [sys.executable, "-m", "lamplighter.cloud_sync.fleet", *map(str, arguments)], cwd=ROOT, check=True
        )
    return lake / "results" / "report.html"


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    scratch = ROOT / "build" / "screenshots" / "frame.png"
    with demo() as street, chromium() as browser:
        browser.look(*STREET_SIZE)
        browser.show(street)
        browser.until(_BEGINS)
        frames, shown = capture(browser, scratch)
        browser.until(_MUCH_HAPPENS)
        frame(browser, scratch).save(IMAGES / "street.png", optimize=True)
        browser.look(*NOW_SIZE)
        browser.show(street.replace("/street", "/now"))
        browser.until(_VALUES)
        frame(browser, scratch).save(IMAGES / "now.png", optimize=True)
        browser.look(*PHONE_SIZE)
        browser.until(_VALUES)
        frame(browser, scratch).save(IMAGES / "phone.png", optimize=True)
        with TemporaryDirectory() as folder:
            browser.look(*REPORT_SIZE)
            browser.show(report(Path(folder)).as_uri())
            frame(browser, scratch).save(IMAGES / "fleet-report.png", optimize=True)
    draw(IMAGES)
    first, *others = frames
    first.save(IMAGES / "street.webp", save_all=True, append_images=others, duration=shown, loop=0, quality=75)
    for picture in sorted(IMAGES.iterdir()):
        print(f"{picture.relative_to(ROOT)}  {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
