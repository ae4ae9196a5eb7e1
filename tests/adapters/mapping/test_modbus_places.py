"""Places in Modbus devices, in URIs."""

import pytest

from lamplighter.adapters.mapping.modbus_places import ModbusPlace, modbus_place
from lamplighter.engine.errors import PayloadError
from tests.support.tables import each_row


@each_row(
    ("path", "query", "place", "normal", "name"),
    [
        ("/1/040", "", ModbusPlace(1, 40), "/1/40", "1/holding_register-40"),
        ("/1/40", "quantity=1&entity=holding_register", ModbusPlace(1, 40), "/1/40", "1/holding_register-40"),
        ("/255/0", "entity=coil&quantity=3", ModbusPlace(255, 0, 3, "coil"), "/255/0?quantity=3&entity=coil", None),
        ("/0/65535", "", ModbusPlace(0, 65_535), "/0/65535", None),
        ("/7/8", "quantity=2000&entity=discrete_input", ModbusPlace(7, 8, 2_000, "discrete_input"), None, None),
        ("/1/2", "function=multiple", ModbusPlace(1, 2, multiple=True), "/1/2?function=multiple", None),
        ("/1/8", "quantity=3&entity=coil", ModbusPlace(1, 8, 3, "coil"), None, "1/coil-8-3"),
    ],
)
def test_a_place_has_one_spelling(
    path: str, query: str, place: ModbusPlace, normal: str | None, name: str | None
) -> None:
    assert modbus_place(path, query) == place
    assert modbus_place(*place.path().partition("?")[::2]) == place
    assert place.path() == (normal or place.path())
    assert place.name() == (name or place.name())


@each_row(
    ("path", "query", "reason"),
    [
        ("/40", "", "write unit and address"),
        ("/1/40/2", "", "write unit and address"),
        ("/1/-1", "", "write unit and address"),
        ("/1/٣", "", "write unit and address"),
        ("/256/40", "", "the unit is at most 255"),
        ("/1/65536", "", "the last address at most 65535"),
        ("/1/65535", "quantity=2", "the last address at most 65535"),
        ("/1/40", "quantity=0", "quantity is from 1 to 125"),
        ("/1/40", "quantity=x", "quantity is from 1 to 125"),
        ("/1/40", "quantity=126", "quantity is from 1 to 125"),
        ("/1/40", "quantity=2001&entity=coil", "quantity is from 1 to 2000"),
        ("/1/40", "quantity=1&quantity=2", "each once"),
        ("/1/40", "offset=2", "each once"),
        ("/1/40", "entity=Coil", "entity is one of coil, discrete_input"),
        ("/1/40", "function=single", "function is multiple"),
    ],
)
def test_other_places_are_refused(path: str, query: str, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        modbus_place(path, query)
