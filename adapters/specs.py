"""The adapters, each declared once: its names, its service, and by import strings what its process loads.

From a declaration follow the table of the settings that is read, the command, the unit, reload, preflight and the
scripts of the package. CONTRIBUTING.md has the other places.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal, NamedTuple

from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.extras import pip_install

# Of an adapter. It is also the kind of its causes.
Kind = Literal["mqtt", "coap", "http-devices", "modbus"]


class AdapterSpec(NamedTuple):
    """One adapter.

    name: of its command, of its service ``lamplighter-NAME``, and of its settings, with ``_`` for ``-``.
    parts: import string of the function that reads what it is made from (`adapters.parts.ReadParts`).
    title, note: what it is, for its command and its unit.
    memory_mb: ``MemoryHigh=`` and ``MemoryMax=``; unit: further lines of ``[Service]``; keeps_state: whether it has a
        state folder ``lamplighter-NAME``.
    enabling: the key that enables it, its default, and what to do if it is empty or false.
    check: import string of the function that reads the files that its settings name, for `lamplighter check`; it takes
        settings and folder. Empty: none.
    package, extra: what has to be installed, and the extra that installs it. Empty: nothing.
    problems: what its problems of rules of the dataset begin with, so that it deletes only its own.
    polled: whether its devices answer only when they are asked.
    """

    name: Kind
    parts: str
    title: str
    note: str = ""
    memory_mb: tuple[int, int] = (160, 192)
    unit: str = ""
    keeps_state: bool = False
    enabling: tuple[str, object, str] = ("enabled", False, "is false; set it to true to start the adapter")
    check: str = ""
    package: str = ""
    extra: str = ""
    problems: str = ""
    polled: bool = False

    @property
    def table(self) -> str:
        return table_name(self.name)

    @property
    def service(self) -> str:
        return f"lamplighter-{self.name}"

    @property
    def cure(self) -> str:
        """What to do where the package is missing."""
        return f"{pip_install(self.extra)}, or set enabled = false"

    @property
    def reason(self) -> str:
        """Why it does not run where its settings do not enable it."""
        key, _, what = self.enabling
        return f"{self.table}.{key} {what}"

    def is_enabled(self, settings: object) -> bool:
        """Whether its settings enable it."""
        return bool(getattr(settings, self.enabling[0]))

    def load_parts(self) -> Callable[..., Any]:
        """The function that reads its parts. Raises ConfigurationError if its package is missing."""
        try:
            return import_object(self.parts)
        except ImportError as missing:
            if not self.extra:
                raise
            raise ConfigurationError(
                f"[{self.table}] enabled = true needs a package that cannot be loaded: {missing}; {self.cure}"
            ) from missing


ADAPTERS = (
    AdapterSpec(
        "mqtt",
        "lamplighter.adapters.mqtt.parts:mqtt_parts",
        "MQTT adapter",
        " (readings from the broker)",
        memory_mb=(96, 128),
        unit="# The password of mqtt.username: a file of this name in /etc/credstore. Not needed for a broker without "
        "passwords.\nLoadCredential=lamplighter.mqtt-password\n",
        enabling=("host", "", "is empty; set it to the broker's name to start the adapter"),
    ),
    AdapterSpec(
        "coap",
        "lamplighter.adapters.coap.parts:coap_parts",
        "CoAP adapter",
        " (devices, and a server for them)",
        unit="# Keys of devices (OSCORE) and their sender numbers: beside the data folder, and not in its backups.\n",
        keeps_state=True,
        enabling=("enabled", True, "is false; set it to true to start the adapter"),
        problems="CoAP: ",
    ),
    AdapterSpec(
        "http-devices",
        "lamplighter.adapters.http.protocol:http_parts",
        "adapter for devices with HTTP",
        check="lamplighter.adapters.http.credentials:read_credentials",
        problems="HTTP: ",
        polled=True,
    ),
    AdapterSpec(
        "modbus",
        "lamplighter.adapters.modbus.protocol:modbus_parts",
        "Modbus adapter",
        package="pymodbus",
        extra="modbus",
        problems="Modbus: ",
        polled=True,
    ),
)
KINDS: tuple[Kind, ...] = tuple(spec.name for spec in ADAPTERS)
# Those whose rules have resources: of all but MQTT.
RESOURCE_KINDS = KINDS[1:]


def table_name(kind: Kind) -> str:
    """The table of an adapter in lamplighter.toml."""
    return kind.replace("-", "_")


def import_object(place: str) -> Callable[..., Any]:
    """The function of an import string ``module:name``."""
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function
