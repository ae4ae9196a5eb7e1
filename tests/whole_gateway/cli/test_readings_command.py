"""`lamplighter readings` with a running gateway."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from lamplighter.adapters.model.event import EventModel
from lamplighter.adapters.model.latest import LatestModel
from lamplighter.adapters.model.readings import Reading
from tests.support.commands import command
from tests.support.mapping_rules import readings, rules
from tests.support.running_gateway import running_gateway, update

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


async def test_newest_reading_of_each_sensor_is_shown_in_both_models(tmp_path: Path) -> None:
    table = '[[stream]]\ntopic = "{room}/{n}"\nproperty = "gateway:temperature"\nunit = "°C"\nfeature = "room/{room}"\n'
    mapping = rules(table + 'payload = "number"\n')

    def read(topic: str, value: str, **more: object) -> Reading:
        [reading] = readings(mapping, topic, value, **more)  # type: ignore[arg-type]
        return reading

    latest, event = LatestModel(), EventModel(10, 10)
    async with running_gateway(tmp_path) as addresses:
        (tmp_path / "lamplighter.toml").write_text(
            f"[gateway]\nbase_iri = 'http://gateway.example/'\n[http]\nport = {urlsplit(addresses.query).port}\n"
        )

        async def shown(*arguments: str) -> list[list[str]]:
            done = await asyncio.to_thread(command, "readings", *arguments, "--config", tmp_path / "lamplighter.toml")
            assert done.returncode == 0, done.stderr
            return [line.split() for line in done.stdout.splitlines()]

        written = [
            (latest, read("hall/door", "20")),
            (latest, read("hall/window", "17", retained=True)),
            (event, read("attic/roof", "9")),
            (event, read("attic/roof", "8", retained=True, received=NOON + timedelta(seconds=1))),
            *((event, read("attic/roof", str(n), received=NOON + timedelta(seconds=2 + n / 4))) for n in range(4)),
            *((event, read("cellar/roof", str(n), received=NOON + timedelta(seconds=2 + n / 4))) for n in (3, 2, 1)),
            (event, read("yard/roof", "5", retained=True)),
        ]
        for model, reading in written:
            for text in (model.description(reading.stream), *model.updates(reading)):
                assert (await update(addresses, text)).status == 200
        header, *rows = await shown()
        assert header == ["NAME", "OBSERVES", "VALUE", "UNIT", "TIME"]
        assert rows == [
            ["room/attic", "temperature", "3", "unit:DEG_C", "2026-11-21T12:00:02"],
            ["room/cellar", "temperature", "3", "unit:DEG_C", "2026-11-21T12:00:02"],
            ["room/hall", "temperature", "door", "20", "unit:DEG_C", "2026-11-21T12:00:00"],
            ["room/hall", "temperature", "window", "17", "unit:DEG_C", "retained"],
            ["room/yard", "temperature", "5", "unit:DEG_C", "retained"],
        ]
        assert [row[0] for row in (await shown("ATT"))[1:]] == ["room/attic"]
        assert (await shown("nowhere"))[0][:2] == ["no", "readings"]
