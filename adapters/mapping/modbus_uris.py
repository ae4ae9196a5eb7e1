"""URIs of Modbus TCP resources: normal form and parts. Pure.

``modbus+tcp://HOST:PORT/UNIT/ADDRESS?quantity=N`` (WoT Modbus Binding, "URL format"). ADDRESS is that of the protocol:
the first register has the address 0, whatever number the device's manual gives it.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import urlsplit

from lamplighter.adapters.mapping import uris
from lamplighter.adapters.mapping.registers import ADDRESS_MAX, UNIT_MAX, Entity
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import iri

MODBUS_PORT = 502
SCHEME = "modbus+tcp"
EXAMPLE = "modbus+tcp://192.168.7.20/1/40, or modbus+tcp://192.168.7.20:1502/1/40?quantity=2"
_PLACE = re.compile(r"/([0-9]{1,3})/([0-9]{1,5})")
_QUANTITY = re.compile(r"(?:quantity=([0-9]{1,4}))?")


class ModbusUri(NamedTuple):
    """A URI in its parts. host: in lower case, an IPv6 address without brackets; quantity: None: that of one value."""

    host: str
    port: int
    unit: int
    address: int
    quantity: int | None = None

    @property
    def authority(self) -> str:
        """The device on the network, as host or host:port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == MODBUS_PORT else f"{host}:{self.port}"

    def text(self) -> str:
        """The normal form."""
        quantity = "" if self.quantity is None else f"?quantity={self.quantity}"
        return f"{SCHEME}://{self.authority}/{self.unit}/{self.address}{quantity}"

    def name(self, entity: Entity) -> str:
        """Device and place, as default IRIs have them: ``192.168.7.20~1502/1/holding_register/40``."""
        return f"{uris.authority_name(self.authority)}/{self.unit}/{entity}/{self.address}"


def parsed(text: str) -> ModbusUri:
    """The parts of a URI. Raises PayloadError for other URIs, and for those that do not name a single device."""
    try:
        iri(text)  # refuses white space and control characters, which urlsplit silently removes
        parts = urlsplit(text)
        host, port = parts.hostname or "", MODBUS_PORT if parts.port is None else parts.port
        host.encode("idna")  # as resolving the name does
    except ValueError as error:
        raise PayloadError(f"not a URI: {error}") from error
    if parts.scheme != SCHEME:
        raise PayloadError(f"not a {SCHEME}:// URI; write {EXAMPLE}")
    found = _PLACE.fullmatch(parts.path)
    quantity = _QUANTITY.fullmatch(parts.query)
    if not host or not port or "@" in parts.netloc or parts.fragment or found is None or quantity is None:
        raise PayloadError(f"write host, unit, address and quantity as in {EXAMPLE}")
    if _is_multicast(host):
        raise PayloadError("a multicast address has no single device; write the address of the device")
    place = ModbusUri(host, port, int(found[1]), int(found[2]), None if quantity[1] is None else int(quantity[1]))
    if place.unit > UNIT_MAX or place.address > ADDRESS_MAX:
        raise PayloadError(f"the unit is at most {UNIT_MAX}, and the address at most {ADDRESS_MAX}")
    if place.quantity == 0 or place.address + (place.quantity or 1) > ADDRESS_MAX + 1:
        raise PayloadError(f"the quantity is at least 1, and the last address at most {ADDRESS_MAX}")
    return place


def _is_multicast(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_multicast
    except ValueError:
        return False  # a name
