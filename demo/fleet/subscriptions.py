"""A fleet subscription in the demo: registered before the first segment is ingested, delivered to files.

Its notifications are compared with the readings that the real gateways were sent, and with silver for the others.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamplighter.cloud_sync.fleet.lake import Lake, tables
from lamplighter.cloud_sync.fleet.subscriptions.matcher import Matcher
from lamplighter.cloud_sync.fleet.subscriptions.records import FilesSink
from lamplighter.cloud_sync.fleet.subscriptions.registry import SubscriptionRegistry
from lamplighter.cloud_sync.fleet.subscriptions.segment_order import ORDER_WAIT_S
from lamplighter.demo.fleet.checks import Check, same
from lamplighter.demo.fleet.gateways import RealGateway
from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.tables import count_text
from lamplighter.ontology import vocabulary as v

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "warm-places"
DEGREES = 22
QUERY = f"""
PREFIX sosa: <{v.SOSA}>
PREFIX lighting: <{v.LIGHTING}>
SELECT ?place ?value ?time {{
  ?reading sosa:observedProperty lighting:temperature ; sosa:hasFeatureOfInterest ?place ;
           sosa:hasSimpleResult ?value ; sosa:resultTime ?time .
  FILTER(?value > {DEGREES})
}}
"""
_WAIT_S = 120.0
_SHOWN = 4


class WarmPlaces:
    """The subscription, its matcher and its notifications."""

    def __init__(self, lake: Lake, say: Callable[[str], None]) -> None:
        self._lake = lake
        self._say = say
        self.folder = Path(lake.path("notifications"))
        self.folder.mkdir(parents=True)
        SubscriptionRegistry(lake).add(NAME, QUERY, deliver=[FilesSink(url=str(self.folder))])
        say(f"{NAME}: every temperature above {DEGREES} degrees, of any gateway, as lines of files in {self.folder}")

    def match(self, spark: SparkSession, *, late: bool) -> None:
        """Matches what has been ingested. late: nothing more will come, so nothing waits for missing segments."""
        matcher = Matcher(spark, self._lake, order_wait_s=0 if late else ORDER_WAIT_S, say=self._say)
        while matcher.advance() is not None:
            pass
        if matcher.waiting:
            self._say(f"{matcher.waiting} segments wait for missing ones before them, so that the order is kept")

    def deliver(self) -> None:
        """Delivers all matches, by a process of its own."""
        expected = sum(batch.rows for batch in tables.table(self._lake, "matches").live())
        with _delivering(self._lake):
            end = time.monotonic() + _WAIT_S
            while len(found := self.notifications()) < expected:
                if time.monotonic() > end:
                    raise UpstreamError(f"{len(found)} of {expected} notifications were delivered in {_WAIT_S:.0f} s")
                time.sleep(0.2)
        gateways = len({one["gateway"] for one in found})
        self._say(
            f"{NAME} fired: {count_text(len(found), 'notification', ',')} of {count_text(gateways, 'gateway')}, such as"
        )
        for one in found[:: max(1, len(found) // _SHOWN)][:_SHOWN]:
            row = _rows(one)[0]
            place = row["place"]["value"].rpartition("/")[2]
            self._say(f"  {row['value']['value']} degrees at {place}, {one['time']}, gateway {one['gateway']}")

    def notifications(self) -> list[dict[str, Any]]:
        """Those that were delivered, each once, in their order."""
        lines = [line for path in sorted(self.folder.glob("*/*.ndjson")) for line in path.read_text().splitlines()]
        return list({one["id"]: one for one in map(json.loads, lines)}.values())

    def checks(self, spark: SparkSession, real: Sequence[RealGateway]) -> list[Check]:
        from pyspark.sql import functions as F

        found = [(one["gateway"], float(row["value"]["value"])) for one in self.notifications() for row in _rows(one)]
        sent = [
            (gateway.name, degrees)
            for gateway in real
            for readings in gateway.readings.values()
            for degrees in readings
            if degrees > DEGREES
        ]
        warm = tables.read(spark, self._lake, "observations").where(
            (F.col("property") == v.TEMPERATURE) & (F.col("number") > DEGREES)
        )
        names = {gateway.name for gateway in real}
        return [
            same("notifications of real gateways: all that was sent", sent, [one for one in found if one[0] in names]),
            same(
                "notifications: the readings in silver", [(row["gw"], row["number"]) for row in warm.collect()], found
            ),
        ]


def _rows(notification: dict[str, Any]) -> list[dict[str, Any]]:
    """The bindings of its SPARQL results."""
    found: list[dict[str, Any]] = notification["results"]["results"]["bindings"]
    return found


@contextlib.contextmanager
def _delivering(lake: Lake) -> Iterator[None]:
    command = ["-m", "lamplighter.cloud_sync.fleet", "subscriptions", "deliver", lake.url, "--every", "0.5"]
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()
