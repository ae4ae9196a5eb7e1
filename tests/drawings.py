"""The drawings of the documents: boxes and arrows as SVG. `make screenshots` writes them to docs/images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

LINE, TEXT = 20, 15
"""Height of a line, and of its letters, in pixels."""


@dataclass(frozen=True)
class Box:
    """x, y: of the upper left corner. lines: the first is the title. group: a frame around other boxes."""

    x: int
    y: int
    width: int
    height: int
    lines: tuple[str, ...]
    group: bool = False

    def svg(self) -> str:
        kind = "group" if self.group else "box"
        top = self.y + 22 if self.group else self.y + (self.height - LINE * len(self.lines)) // 2 + TEXT
        middle, classes = self.x + self.width // 2, ["title"] + ["more"] * (len(self.lines) - 1)
        texts = "".join(
            f'<text x="{middle}" y="{top + LINE * number}" class="{kind_of_text}">{escape(line)}</text>'
            for number, (line, kind_of_text) in enumerate(zip(self.lines, classes, strict=True))
        )
        frame = f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="8" class="{kind}"/>'
        return f"{frame}{texts}\n"


@dataclass(frozen=True)
class Arrow:
    """From a point to another one, with a label above its middle."""

    begin: tuple[int, int]
    end: tuple[int, int]
    label: str = ""

    def svg(self) -> str:
        (x1, y1), (x2, y2) = self.begin, self.end
        label = ""
        if self.label:
            label = f'<text x="{(x1 + x2) // 2}" y="{(y1 + y2) // 2 - 7}" class="label">{escape(self.label)}</text>'
        return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="arrow" marker-end="url(#head)"/>{label}\n'


STYLE = f"""<style>
text {{ font-family: system-ui, sans-serif; font-size: {TEXT}px; text-anchor: middle; fill: #1b1f24 }}
.title {{ font-weight: 600 }} .more, .label {{ font-size: 13px; fill: #4a5560 }}
.box {{ fill: #fff; stroke: #56616c }} .group {{ fill: #eef3f8; stroke: #9fb0c0 }}
.arrow {{ stroke: #56616c; stroke-width: 1.6 }} .head {{ fill: #56616c }}
</style>
<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0 10 5 0 10z" class="head"/></marker></defs>
"""


def drawing(width: int, height: int, title: str, parts: Iterable[Box | Arrow]) -> str:
    """An SVG document on white, so that it is seen on a dark page too."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n<title>{escape(title)}'
        f'</title>\n{STYLE}<rect width="{width}" height="{height}" fill="#fff"/>\n'
        + "".join(part.svg() for part in parts)
        + "</svg>\n"
    )


APPLIANCE = drawing(
    960,
    420,
    "The appliance: devices on the left, its services on one card, browsers, programs and the fleet on the right",
    [
        Box(20, 60, 170, 64, ("MQTT devices", "Zigbee2MQTT, Tasmota")),
        Box(20, 164, 170, 64, ("CoAP devices", "with OSCORE keys")),
        Box(20, 268, 170, 64, ("HTTP and Modbus", "meters, plugs")),
        Box(240, 20, 470, 380, ("Appliance: one SD card",), group=True),
        Box(260, 60, 130, 64, ("mosquitto", "TLS, accounts")),
        Box(260, 164, 130, 168, ("Adapters", "one service", "per protocol", "mapping rules")),
        Box(450, 112, 240, 120, ("Gateway", "SPARQL engine", "applications, timers", "web page, documents")),
        Box(450, 262, 240, 70, ("Data partition", "change log, snapshots, keys")),
        Box(260, 352, 430, 34, ("System A and B: failed updates are taken back",)),
        Box(770, 60, 170, 64, ("Browsers", "phone, desk")),
        Box(770, 164, 170, 64, ("Programs", "SEPA, HTTP, MQTT")),
        Box(770, 268, 170, 64, ("Fleet", "shipped logs, Spark")),
        Arrow((190, 92), (258, 92)),
        Arrow((325, 124), (325, 162)),
        Arrow((190, 196), (258, 196)),
        Arrow((190, 300), (258, 300)),
        Arrow((390, 190), (448, 190)),
        Arrow((570, 232), (570, 260)),
        Arrow((690, 140), (768, 96)),
        Arrow((690, 180), (768, 194)),
        Arrow((690, 297), (768, 299)),
    ],
)

LOG = drawing(
    960,
    400,
    "The change log: the gateway appends each commit; recovery, history, replication and the fleet read it",
    [
        Box(20, 40, 170, 64, ("Updates", "clients, devices")),
        Box(20, 140, 170, 64, ("Timers", "delayed updates")),
        Box(250, 80, 170, 84, ("Gateway", "quad delta", "of each update")),
        Box(480, 60, 200, 124, ("Change log", "records in order", "sealed segments", "snapshots")),
        Box(480, 240, 200, 64, ("Answers, notifications", "after the sync")),
        Box(750, 20, 190, 56, ("Recovery", "the next start")),
        Box(750, 92, 190, 56, ("History", "charts, logbook, explain")),
        Box(750, 164, 190, 56, ("Resumed subscribers", "what they missed")),
        Box(750, 236, 190, 56, ("Change feed", "other stores")),
        Box(750, 308, 190, 56, ("Shipper", "fleet tables on Spark")),
        Arrow((190, 72), (248, 110)),
        Arrow((190, 172), (248, 136)),
        Arrow((420, 122), (478, 122), "append"),
        Arrow((580, 184), (580, 238)),
        Arrow((680, 86), (748, 50)),
        Arrow((680, 110), (748, 118)),
        Arrow((680, 130), (748, 188)),
        Arrow((680, 150), (748, 258)),
        Arrow((680, 168), (748, 328)),
    ],
)


def draw(folder: Path) -> None:
    """Writes all drawings."""
    for name, text in (("appliance.svg", APPLIANCE), ("change-log.svg", LOG)):
        (folder / name).write_text(text)
