"""Processor time of the MQTT mapping for one message: ``python -m benchmarks.mapping``.

Topic and payload to the text of the update, without broker and gateway. The best of several rounds, on warm caches.
"""

from __future__ import annotations

import struct
import time
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

import msgspec

from lamplighter.adapters.mapping import Births, Mapping, StreamRule, StreamTable
from lamplighter.adapters.model.latest import LatestModel
from lamplighter.adapters.model.readings import Reading
from lamplighter.ontology.vocabulary import PREFIXES

ROUNDS = 20
MESSAGES = 2_000
_RULES = """
[[stream]]
topic = "number/{x}"
property = "lighting:temperature"
payload = "number"
unit = "Cel"

[[stream]]
topic = "json/{x}"
payload = "number"
[[stream.read]]
member = "temperature"
property = "lighting:temperature"
[[stream.read]]
member = "humidity"
property = "gateway:humidity"
[[stream.read]]
member = "occupancy"
property = "lighting:presence"
payload = "boolean"

[[stream]]
topic = "senml/{x}"
property = "gateway:{n}"
payload = "senml"

[[stream]]
topic = "binary/{x}"
property = "lighting:temperature"
payload = "number"
format = "<hf"
scale = 0.1

[[stream]]
topic = "text/{x}"
property = "lighting:temperature"
payload = "number"
pattern = "T=(-?[0-9.]+)"
"""
_MESSAGES = {
    "number/1": b"21.5",
    "json/1": b'{"temperature":21.37,"humidity":48.2,"occupancy":true,"linkquality":120}',
    "senml/1": b'[{"bn":"dev1:","bt":1795262390,"bu":"Cel","n":"t","v":23.1},{"n":"u","v":3},{"n":"w","v":4}]',
    "binary/1": struct.pack("<hf", 215, 1.0),
    "text/1": b"hum=40% T=-3.5C",
}


def cost_us(work: Callable[[], object]) -> float:
    """The least processor time of a call, in us."""
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in range(MESSAGES // ROUNDS):
            work()
        best = min(best, (time.process_time() - begun) / (MESSAGES // ROUNDS) * 1e6)
    return best


def main() -> None:
    tables = tomllib.loads(_RULES, parse_float=Decimal)["stream"]
    mapping = Mapping(
        [
            StreamRule(
                msgspec.convert(table, StreamTable), prefixes=PREFIXES, base_iri="http://g.example/", place="rule"
            )
            for table in tables
        ]
    )
    model, births, now = LatestModel(), Births(), datetime.now(UTC)
    for topic, payload in _MESSAGES.items():

        def message(topic: str = topic, payload: bytes = payload) -> int:
            found = mapping.readings(topic, payload, retained=False, received=now, births=births)
            return len([model.updates(reading) for reading in found if isinstance(reading, Reading)])

        readings = message()
        print(f"{topic.partition('/')[0]:<8} {readings} readings  {cost_us(message):6.1f} us a message")


if __name__ == "__main__":
    main()
