"""The files that the settings of a broker name: password, authorities, own certificate."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from lamplighter.adapters.mqtt.settings import FIRST_BROKER, BrokerSettings, MqttSettings
from lamplighter.engine.client.files import read_text
from lamplighter.engine.errors import ConfigurationError

MQTT_PASSWORD = "lamplighter.mqtt-password"
"""The credential with the password where no file is named."""
SomeBroker = TypeVar("SomeBroker", bound=BrokerSettings)


class BrokerCredentials(NamedTuple):
    """tls: None without encryption."""

    password: str = ""
    tls: ssl.SSLContext | None = None


def with_passwords(settings: MqttSettings, credential: Callable[[str], Path | None]) -> MqttSettings:
    """Settings whose password_files are the credentials of these names; without one, the first broker's is
    `MQTT_PASSWORD`. credential: the file of one, None if there is none of that name."""

    def completed(broker: SomeBroker, default: str) -> SomeBroker:
        name = broker.password_file or default
        path = credential(name) if broker.username and name else None
        return broker if path is None else msgspec.structs.replace(broker, password_file=str(path))

    brokers = {name: completed(broker, "") for name, broker in settings.brokers.items()}
    return msgspec.structs.replace(completed(settings, MQTT_PASSWORD), brokers=brokers)


def read_credentials(settings: BrokerSettings, table: str) -> BrokerCredentials:
    """Reads all files that the settings name. table: for errors, such as ``mqtt.brokers.attic``.

    Raises ConfigurationError, which names all faults, one a line.
    """
    found = BrokerCredentials()
    faults = []
    try:
        found = found._replace(password=_password(settings, table))
    except ConfigurationError as error:
        faults.append(error)
    try:
        found = found._replace(tls=_tls(settings, table))
    except ConfigurationError as error:
        faults.append(error)
    if faults:
        raise ConfigurationError("\n".join(map(str, faults))) from faults[0].__cause__
    return found


def _password(settings: BrokerSettings, table: str) -> str:
    if not settings.password_file:
        return ""
    try:
        return read_text(settings.password_file).partition("\n")[0].strip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{table}.password_file cannot be read: {error}") from error


def _tls(settings: BrokerSettings, table: str) -> ssl.SSLContext | None:
    if not settings.tls:
        return None
    try:
        tls = ssl.create_default_context(cafile=settings.ca_file or None)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigurationError(f"{table}.ca_file = {settings.ca_file!r} cannot be used: {error}") from error
    if settings.certificate_file:
        try:
            # Without a function the library would ask for the password of an encrypted key on the terminal.
            tls.load_cert_chain(settings.certificate_file, settings.key_file or None, password=str)
        except OSError as error:
            raise ConfigurationError(
                f"{table}.certificate_file = {settings.certificate_file!r} cannot be used: {error}; it and "
                "key_file have to be in PEM, without a password"
            ) from error
    return tls


def table_of(broker: str) -> str:
    """The table of the settings that describes a broker."""
    return "mqtt" if broker == FIRST_BROKER else f"mqtt.brokers.{broker}"
