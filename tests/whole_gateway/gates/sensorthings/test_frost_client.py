"""Fraunhofer's client of FROST, the reference server of SensorThings, against the gateway."""

from __future__ import annotations

import asyncio

import frost_sta_client as fsc
import pytest

from lamplighter.gateway.addresses import Addresses


def use(url: str) -> None:
    service = fsc.SensorThingsService(url)
    [thing] = service.things().query().filter("name eq 'Post one'").list()
    assert thing.id == "platform~1"
    streams = thing.get_datastreams().query().orderby("id", "ASC").expand("ObservedProperty,Observations").list()
    assert [one.id for one in streams] == ["stream~1", "stream~2"]
    assert streams.get(0).unit_of_measurement.symbol == "Cel"
    assert streams.get(0).observed_property.name == "Temperatur"
    paged = service.observations().query().top(1).count().orderby("resultTime", "DESC").list()
    assert paged.count == 3
    assert [one.result for one in paged] == [False, 20.5, True], "it follows the links to further pages"
    [place] = thing.get_locations().query().list()
    assert list(place.location["coordinates"]) == [11.25, 44.5]
    made = fsc.Observation(
        result=23.25, phenomenon_time="2026-11-26T12:00:00Z", datastream=fsc.Datastream(id="stream~1")
    )
    service.create(made)
    assert made.id == "observation~1"
    assert service.observations().find(made.id).result == 23.25
    assert service.features_of_interest().find("post~1").feature["coordinates"] == [11.25, 44.5]


@pytest.mark.filterwarnings("ignore:furl.pathstr:DeprecationWarning")  # of the client
async def test_the_client_reads_follows_pages_and_creates(at: Addresses) -> None:
    await asyncio.to_thread(use, at.query.removesuffix("/query") + "/v1.1")
