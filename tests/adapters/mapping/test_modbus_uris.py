"""URIs of Modbus TCP resources."""

import pytest

from lamplighter.adapters.mapping.modbus_uris import ModbusUri, parsed
from lamplighter.engine.errors import PayloadError


@pytest.mark.parametrize(
    ("text", "normal", "name"),
    [
        ("modbus+tcp://Meter:502/1/040", "modbus+tcp://meter/1/40", "meter/1/coil/40"),
        ("MODBUS+TCP://[::1]:1502/255/0?quantity=2", "modbus+tcp://[::1]:1502/255/0?quantity=2", "==1~1502/255/coil/0"),
        ("modbus+tcp://10.0.0.7/0/65535", "modbus+tcp://10.0.0.7/0/65535", "10.0.0.7/0/coil/65535"),
    ],
)
def test_one_place_has_one_spelling(text: str, normal: str, name: str) -> None:
    place = parsed(text)
    assert (place.text(), place.name("coil")) == (normal, name)
    assert parsed(normal) == place


def test_the_parts_of_a_uri() -> None:
    assert parsed("modbus+tcp://10.0.0.7:1502/3/40?quantity=4") == ModbusUri("10.0.0.7", 1502, 3, 40, 4)
    assert parsed("modbus+tcp://10.0.0.7/3/40") == ModbusUri("10.0.0.7", 502, 3, 40)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("coap://10.0.0.7/1/40", "not a modbus\\+tcp:// URI"),
        ("modbus+tcp:///1/40", "write host, unit, address"),
        ("modbus+tcp://10.0.0.7/40", "write host, unit, address"),
        ("modbus+tcp://10.0.0.7/1/40/2", "write host, unit, address"),
        ("modbus+tcp://10.0.0.7/1/-1", "write host, unit, address"),
        ("modbus+tcp://10.0.0.7/1/٣", "write host, unit, address"),
        ("modbus+tcp://10.0.0.7:0/1/40", "write host, unit, address"),
        ("modbus+tcp://10.0.0.7:99999/1/40", "not a URI"),
        ("modbus+tcp://me@10.0.0.7/1/40", "write host, unit, address"),
        ("modbus+tcp://10.0.0.7/1/40#x", "write host, unit, address"),
        ("modbus+tcp://10.0.0.7/1/40?offset=2", "write host, unit, address"),
        ("modbus+tcp://10.0.0.7/1/40?quantity=1&quantity=2", "write host, unit, address"),
        ("modbus+tcp://10.0.0.7/1/4 0", "not a URI"),
        ("modbus+tcp://224.0.0.1/1/40", "multicast"),
        ("modbus+tcp://10.0.0.7/256/40", "unit is at most 255"),
        ("modbus+tcp://10.0.0.7/1/65536", "address at most 65535"),
        ("modbus+tcp://10.0.0.7/1/40?quantity=0", "quantity is at least 1"),
        ("modbus+tcp://10.0.0.7/1/65535?quantity=2", "last address at most 65535"),
    ],
)
def test_other_uris_are_refused(text: str, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        parsed(text)
