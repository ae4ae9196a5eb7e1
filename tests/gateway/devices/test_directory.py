"""Names that people gave: real-looking ones, with blanks, umlauts and slashes, and what they name."""

from __future__ import annotations

import time

import pytest

from lamplighter.engine.terms import literal
from lamplighter.gateway.devices.directory import Kind, NameDirectory, NamedThing, UnknownNameError
from lamplighter.gateway.devices.ruled import names_of_files, names_of_rows
from lamplighter.gateway.texts import comparable, nearest

BASE = "http://lamplighter.local/"


def device(identity: str, name: str, room: str | None = None, *parts: tuple[Kind, str, str]) -> list[NamedThing]:
    """A device and its parts: kind, property and label."""
    found = [NamedThing("device", name, identity, f"{BASE}device/{identity}", room)]
    for kind, property_, label in parts:
        path = f"{kind}/{identity}/{property_}"
        found.append(NamedThing(kind, f"{name} {label}", path, BASE + path, room, property_, identity, name))
    return found


LAMP = (("actuator", "light", "light"), ("actuator", "brightness", "brightness"), ("sensor", "linkQuality", "signal"))
HOUSE = NameDirectory(
    [
        *device("zigbee2mqtt/0x00158d0001", "Wohnzimmer/Decke links", "Wohnzimmer", *LAMP),
        *device("zigbee2mqtt/0x00158d0002", "Wohnzimmer/Decke rechts", "Wohnzimmer", *LAMP),
        *device("zigbee2mqtt/0x00158d0003", "Küchenlampe", "Küche", *LAMP),
        *device("homeassistant/kueche", "Kuchenlampe", "Küche", ("actuator", "switch", "switch")),
        *device("homeassistant/a", "Kitchen lamp", "Kitchen", *LAMP),
        *device("homeassistant/b", "Kitchen lamp", "Kitchen", *LAMP),
        *device("shelly/plug-1", "Waschmaschine 🧺", None, ("sensor", "power", "electric power")),
        *device("zigbee2mqtt/0x04", "Bewegungsmelder Flur (oben)", "Flur", ("sensor", "occupancy", "occupancy")),
        *device("zigbee2mqtt/0x05", "hall lamp", None),
        NamedThing("room", "Küche", "area/K%C3%BCche", f"{BASE}area/K%C3%BCche"),
        NamedThing("room", "Gäste-WC", "area/guests", f"{BASE}area/guests"),
        NamedThing("actuator", "actuator/kitchen", "actuator/kitchen", f"{BASE}actuator/kitchen"),
    ],
    BASE,
)


@pytest.mark.parametrize(
    ("text", "kind", "properties", "found"),
    [
        ("Wohnzimmer/Decke links", "actuator", ("light", "switch"), "actuator/zigbee2mqtt/0x00158d0001/light"),
        ("wohnzimmer/decke links", "actuator", ("brightness",), "actuator/zigbee2mqtt/0x00158d0001/brightness"),
        ("Wohnzimmer/Decke links brightness", "actuator", (), "actuator/zigbee2mqtt/0x00158d0001/brightness"),
        ("zigbee2mqtt/0x00158d0002", "actuator", ("light",), "actuator/zigbee2mqtt/0x00158d0002/light"),
        ("zigbee2mqtt/0x00158d0002", "device", (), "zigbee2mqtt/0x00158d0002"),
        ("Küchenlampe", "actuator", ("light", "switch"), "actuator/zigbee2mqtt/0x00158d0003/light"),
        ("Ku\u0308chenlampe", "device", (), "zigbee2mqtt/0x00158d0003"),
        ("Kuchenlampe", "device", (), "homeassistant/kueche"),
        ("  Gäste-WC ", "room", (), "area/guests"),
        ("gaste-wc", "room", (), "area/guests"),
        ("waschmaschine 🧺", "sensor", ("power",), "sensor/shelly/plug-1/power"),
        ("BEWEGUNGSMELDER FLUR (OBEN)", "sensor", ("occupancy", "motion"), "sensor/zigbee2mqtt/0x04/occupancy"),
        ("kitchen", "actuator", (), "actuator/kitchen"),
        ("actuator/kitchen", "actuator", (), "actuator/kitchen"),
        (f"{BASE}actuator/kitchen", "actuator", (), "actuator/kitchen"),
        ("http://elsewhere.example/lamp", "actuator", (), "http://elsewhere.example/lamp"),
    ],
)
def test_names(text: str, kind: Kind, properties: tuple[str, ...], found: str) -> None:
    assert HOUSE.resolve(text, kind, properties).id == found


@pytest.mark.parametrize(
    ("text", "kind", "properties", "said"),
    [
        ("Kitchen lamp", "device", (), "it names 2: Kitchen lamp (homeassistant/a), Kitchen lamp (homeassistant/b)"),
        ("Kitchen lamp", "actuator", ("light",), "it names 2: Kitchen lamp light (actuator/homeassistant/a/light)"),
        ("Wohnzimmer/Decke links", "actuator", (), "it names 2: "),
        ("Wohnzimmer/Deke links", "actuator", ("light",), 'did you mean "Wohnzimmer/Decke links"'),
        ("Kuechenlampe", "device", (), '"Küchenlampe"'),
        ("Decke", "device", (), '"Wohnzimmer/Decke links"'),
        ("Küche ", "device", (), '"Küchenlampe"'),
        ("Kueche", "room", (), 'no room has this name; did you mean "Küche"?'),
        ("xyzzy", "room", (), "no room has this name"),
        ("", "room", (), "no room has this name"),
        ("Hall lamp", "actuator", ("light",), "`lamplighter devices adopt zigbee2mqtt/0x05` adds what it has"),
        ("zigbee2mqtt/0x05", "sensor", (), "has no sensor yet; if it is proposed"),
        ("\x1b[31mKüche", "room", (), "no room has this name"),
    ],
)
def test_refused_names(text: str, kind: Kind, properties: tuple[str, ...], said: str) -> None:
    with pytest.raises(UnknownNameError) as refused:
        HOUSE.resolve(text, kind, properties)
    assert said in str(refused.value) and "\x1b" not in str(refused.value)
    assert len(refused.value.candidates) <= 5


def test_candidates_are_those_that_fit() -> None:
    with pytest.raises(UnknownNameError) as refused:
        HOUSE.resolve("Kitchen lmp", "actuator", ("brightness",))
    assert {one.property for one in refused.value.candidates} == {"brightness"}
    assert {one.device for one in refused.value.candidates[:2]} == {"homeassistant/a", "homeassistant/b"}


def test_selection() -> None:
    found = HOUSE.select(["actuator"], ["light"], "Wohnzimmer")
    assert [one.name for one in found] == ["Wohnzimmer/Decke links light", "Wohnzimmer/Decke rechts light"]
    assert HOUSE.select(["device"], room=f"{BASE}area/K%C3%BCche") == HOUSE.select(["device"], room="kuche")
    assert [one.id for one in HOUSE.select(["device", "room"], search="gaste")] == ["area/guests"]
    assert HOUSE.select(["room"], search="nothing") == []


def test_what_rules_name_exists_before_it_reports(tmp_path: object) -> None:
    rules = literal('{"command": {"actuator": "actuator/attic", "topic": "attic/set"}}')
    ruled = [*names_of_rows([(rules, rules), (rules, literal("[")), (rules, None)], BASE)]
    ruled += [("sensor", f"{BASE}sensor/{{room}}/{{n}}")]
    directory = NameDirectory.of([], BASE, ruled)
    assert directory.resolve("attic", "actuator").iri == f"{BASE}actuator/attic"
    assert directory.resolve("sensor/kitchen/1", "sensor").iri == f"{BASE}sensor/kitchen/1"
    assert directory.resolve("kitchen/1", "sensor").iri == f"{BASE}sensor/kitchen/1"
    with pytest.raises(UnknownNameError):
        directory.resolve("sensor/kitchen", "sensor")


def test_files_name_what_their_rules_have(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("mapping")
    (folder / "a.toml").write_text(
        '[[stream]]\ntopic = "a"\nsensor = "sensor/a"\n[[stream]]\ntopic = "b"\nread = [{sensor = "http://x/y"}]\n'
        '[[command]]\nactuator = "actuator/{room}"\ntopic = "c"\n'
    )
    (folder / "b.toml").write_text("not TOML")
    assert list(names_of_files(folder, BASE)) == [
        ("sensor", f"{BASE}sensor/a"),
        ("sensor", "http://x/y"),
        ("actuator", f"{BASE}actuator/{{room}}"),
    ]


def test_the_nearest_of_many_names_take_little() -> None:
    names = [
        f"{room} {what} {number}"
        for room in ("Küche", "Flur", "Büro", "Bad")
        for what in ("Lampe", "Fenster/links", "Tür", "Rollo", "Plug")
        for number in range(500)
    ]
    assert len(names) == 10_000
    begun = time.process_time()
    assert nearest("Kuche Lamp 417", names)[0] == "Küche Lampe 417"
    few = time.process_time()
    for _ in range(3):
        [comparable(name) for name in names]
    assert few - begun < 20 * (time.process_time() - few), "some times the work of folding them"


def test_what_an_application_names_and_nothing_has() -> None:
    texts = [
        f"SELECT * {{ <{BASE}actuator/kitchn> ?p <{BASE}sensor/zigbee2mqtt/0x04/occupancy> }}",
        f"INSERT {{ <{BASE}actuator/kitchn> ?p <{BASE}area/guests>, <{BASE}other/x> }} WHERE {{}}",
        "SELECT * { <http://x/actuator/y> ?p ?o }",
    ]
    assert HOUSE.warnings("app", texts) == ['app: there is no actuator/kitchn; did you mean "actuator/kitchen"?']
