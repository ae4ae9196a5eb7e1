"""The fleet subscription of the demo: what people see when it fires."""

from pathlib import Path

from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.demo.fleet.subscriptions import NAME, WarmPlaces
from tests.cloud_sync.fleet.delivery.made_up_matches import match, write_batch


def test_what_fired_is_counted_and_shown(tmp_path: Path) -> None:
    said: list[str] = []
    lake = Lake(str(tmp_path / "lake"))
    warm = WarmPlaces(lake, said.append)
    names = ["place", "value", "time"]
    for number, gateway in enumerate(("gw-1", "gw-2"), 1):
        terms = ["<http://example.org/room/7>", f'"2{number}.5"^^<http://www.w3.org/2001/XMLSchema#decimal>', None]
        write_batch(lake, number, [match(NAME, gateway, number, variables=names, rows=[terms])])
    warm.deliver()
    assert said[1:] == [
        f"{NAME} fired: 2 notifications of 2 gateways, such as",
        "  21.5 degrees at 7, 2026-07-01T12:00:00.000Z, gateway gw-1",
        "  22.5 degrees at 7, 2026-07-01T12:00:00.000Z, gateway gw-2",
    ]
