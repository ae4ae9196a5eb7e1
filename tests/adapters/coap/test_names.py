"""Which resource of the dataset a CoAP device is."""

from lamplighter.adapters.coap.discovery import address_id, propose
from lamplighter.adapters.coap.links import parse_links
from lamplighter.adapters.coap.names import DeviceNames
from lamplighter.adapters.devices.registry import Entry
from lamplighter.adapters.mapping import uris
from tests.support.tables import each_row

BASE = "http://gateway.example/"


def entry(base: str, endpoint: str = "", **keys: str) -> Entry:
    device = propose(parse_links(b'</t>;rt="temperature-c"'), base=base, place=base, endpoint=endpoint).device
    assert device is not None
    return Entry(device, keys.get("adoption", "adopted"))  # type: ignore[arg-type]


@each_row(
    ("host", "name"),
    [
        ("192.0.2.7", "192.0.2.7~5683"),
        ("192.0.2.7:61616", "192.0.2.7~61616"),
        ("[fd00::1]", "fd00==1~5683"),
        ("lamp", "lamp~5683"),
    ],
)
def test_an_address_has_the_name_that_discovery_proposes(host: str, name: str) -> None:
    assert DeviceNames(BASE).node(host) == f"<{BASE}device/coap/{name}>"
    found = propose(parse_links(b'</t>;rt="temperature-c"'), base=f"coap://{host}", place="").device
    assert found is not None and found.identity == f"coap/{name}"


@each_row("host", ["läm_p", "%41", "a" * 63 + "." + "b" * 63, ".".join(["%41" * 21] * 11)])
def test_every_host_of_a_rule_has_a_name_of_its_own(host: str) -> None:
    authorities = [uris.authority(uris.normal(f"coap://{host}{port}/x")) for port in ("", ":7")]
    assert len({address_id(one) for one in authorities}) == 2
    assert all(DeviceNames(BASE).node(one).startswith(f"<{BASE}device/coap/") for one in authorities)


def test_the_adopted_device_with_an_address_has_its_name() -> None:
    entries = [entry("coap://192.0.2.7", "hall"), entry("coap://192.0.2.8", "attic", adoption="proposed")]
    registered: list[str] = []
    names = DeviceNames(BASE)
    names.follow(lambda: entries, lambda: registered)
    assert names.node("192.0.2.7") == f"<{BASE}device/coap/hall>"
    assert names.identity("192.0.2.8") == "coap/192.0.2.8~5683", "it is not adopted"
    assert names.is_described(f"<{BASE}sensor/coap/hall/t>")
    assert not names.is_described(f"<{BASE}sensor/coap/attic/t>")
    entries.append(entry("coap://192.0.2.7", "stairs"))
    for first, last in (("stairs", "hall"), ("hall", "stairs")):
        registered[:] = [f"coap/{first}", f"coap/{last}"]
        names.changed()
        assert names.identity("192.0.2.7") == f"coap/{last}"
