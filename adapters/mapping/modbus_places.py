"""Places in Modbus devices, as the path and the query of a URI. Pure.

::

    modbus+tcp://HOST:PORT/UNIT/ADDRESS?quantity=N&entity=ENTITY&function=multiple

URIs of the WoT Modbus Binding ("URL format") have the first three. ADDRESS is that of the protocol: the first register
has the address 0, whatever number the manual of the device gives it.
"""

from __future__ import annotations

import re
from typing import NamedTuple, get_args
from urllib.parse import urlsplit

from lamplighter.adapters.mapping.registers import ADDRESS_MAX, UNIT_MAX, Entity, read_max
from lamplighter.engine.errors import PayloadError

EXAMPLE = "modbus+tcp://192.168.7.20/1/40 or modbus+tcp://192.168.7.20:1502/1/40?quantity=2&entity=input_register"
USUAL_ENTITY: Entity = "holding_register"
ENTITIES: tuple[Entity, ...] = get_args(Entity)
_PATH = re.compile(r"/([0-9]{1,3})/([0-9]{1,5})")
_QUANTITY = re.compile(r"[0-9]{1,4}")


class ModbusPlace(NamedTuple):
    """Registers or bits of a unit. multiple: a single one is written by the function for several, too (15, 16)."""

    unit: int
    address: int
    quantity: int = 1
    entity: Entity = USUAL_ENTITY
    multiple: bool = False

    def path(self) -> str:
        """Path and query of the URI in normal form, without what is usual."""
        parts = [f"quantity={self.quantity}"] * (self.quantity != 1)
        parts += [f"entity={self.entity}"] * (self.entity != USUAL_ENTITY)
        parts += ["function=multiple"] * self.multiple
        return f"/{self.unit}/{self.address}" + (f"?{'&'.join(parts)}" if parts else "")

    def name(self) -> str:
        """As default IRIs have it: ``1/holding_register-40``, and ``1/coil-8-3`` for three coils from 8 on."""
        quantity = "" if self.quantity == 1 else f"-{self.quantity}"
        return f"{self.unit}/{self.entity}-{self.address}{quantity}"


def modbus_place(path: str, query: str) -> ModbusPlace:
    """The place of a URI's path and query. Raises PayloadError."""
    found = _PATH.fullmatch(path)
    if found is None:
        raise PayloadError(f"write unit and address as in {EXAMPLE}")
    given: dict[str, str] = {}
    for part in query.split("&") if query else []:
        key, _, value = part.partition("=")
        if key in given or key not in ("quantity", "entity", "function"):
            raise PayloadError(f"the query of a Modbus URI has quantity, entity and function, each once: {EXAMPLE}")
        given[key] = value
    quantity, entity, function = given.get("quantity", "1"), given.get("entity", USUAL_ENTITY), given.get("function")
    if entity not in ENTITIES:
        raise PayloadError(f"entity is one of {', '.join(ENTITIES)}")
    if function not in (None, "multiple"):
        raise PayloadError("function is multiple, or is left out")
    place = ModbusPlace(
        int(found[1]),
        int(found[2]),
        int(quantity) if _QUANTITY.fullmatch(quantity) else 0,
        entity,
        function is not None,
    )
    if place.unit > UNIT_MAX or place.address + place.quantity > ADDRESS_MAX + 1:
        raise PayloadError(f"the unit is at most {UNIT_MAX}, and the last address at most {ADDRESS_MAX}")
    most = read_max(place.entity)
    if not 0 < place.quantity <= most:
        raise PayloadError(f"quantity is from 1 to {most}, which one request reads of a {entity}")
    return place


def place_of(resource: str) -> ModbusPlace:
    """The place of a URI in normal form."""
    parts = urlsplit(resource)
    return modbus_place(parts.path, parts.query)
