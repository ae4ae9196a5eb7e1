"""`lamplighter readings` with a running gateway."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from lamplighter.adapters.model.event import EventModel
from lamplighter.adapters.model.latest import LatestModel
from lamplighter.adapters.model.readings import Reading
from lamplighter.ontology.vocabulary import SINCE, XSD
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

        async def shown(*arguments: str, code: int = 0) -> list[list[str]]:
            done = await asyncio.to_thread(command, "readings", *arguments, "--config", tmp_path / "lamplighter.toml")
            assert done.returncode == code, done.stderr
            return [line.split() for line in (done.stderr if code else done.stdout).splitlines()]

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
        assert (await shown("nowhere", code=4))[0][1:4] == ["nothing", "is", "called"]
        assert "room/attic" in " ".join((await shown("room/atic", code=4))[0]), "the nearest name"


async def test_values_that_are_absent_or_not_confirmed_say_so(tmp_path: Path) -> None:
    broker = "<http://gateway.example/broker/default>"
    table = '[[stream]]\ntopic = "{room}/t"\nproperty = "ex:t"\npayload = "number"'
    mapping = rules(table).of_broker("default", (broker,))
    async with running_gateway(tmp_path) as addresses:
        (tmp_path / "lamplighter.toml").write_text(
            f"[gateway]\nbase_iri = 'http://gateway.example/'\n[http]\nport = {urlsplit(addresses.query).port}\n"
        )
        model = LatestModel()
        texts = [f'INSERT DATA {{ {broker} <{SINCE}> "2026-11-21T12:00:01.5Z"^^<{XSD}dateTime> }}']
        for topic, payload, second in (("hall/t", "20", 1), ("attic/t", "19", 2), ("yard/t", "nil", 3)):
            received = NOON + timedelta(seconds=second)
            [reading] = mapping.readings(topic, payload.encode(), retained=False, received=received)
            assert isinstance(reading, Reading)
            texts += [model.description(reading.stream), *model.updates(reading)]
        for text in texts:
            assert (await update(addresses, text)).status == 200

        async def printed(*arguments: str) -> list[str]:
            done = await asyncio.to_thread(command, "readings", *arguments, "--config", tmp_path / "lamplighter.toml")
            return done.stdout.splitlines()

        assert [line.split()[2:] for line in (await printed())[1:]] == [
            ["19", "2026-11-21T12:00:02"],
            ["20", "2026-11-21T12:00:01", "(unconfirmed)"],
            ["(unknown)", "2026-11-21T12:00:03"],
        ]
        found = [json.loads(line) for line in await printed("--json")]
        assert [(one["value"], one.get("nil_reason"), one["confirmed"]) for one in found] == [
            ("19", None, True),
            ("20", None, False),
            ("", "unknown", True),
        ]
