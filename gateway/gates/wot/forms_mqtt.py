"""Forms of a submitted Thing Description with mqtt:// and mqtts:// (W3C WoT MQTT Binding)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import unquote, urlsplit

from lamplighter.adapters.devices.device import Table
from lamplighter.adapters.mqtt.settings import BrokerSettings
from lamplighter.gateway.gates.wot.forms import DescribedThing, FormPlace, UnusableError, media


def mqtt_place(thing: DescribedThing, form: Table, href: str, at: str, ops: Sequence[str], *, used: str) -> FormPlace:
    """As `FormReader`. used: the broker of the thing. The security of a broker is that of lamplighter.toml."""
    name = broker_of(href, thing.settings.mqtt.all_brokers())
    if name is None or name != used:
        cure = "name it in [mqtt] or [mqtt.brokers.NAME]" if name is None else "all forms of a thing have one broker"
        raise UnusableError(f"{at}.href", f"no broker of lamplighter.toml that can be used is there; {cure}")
    topic = form.get("mqv:topic", form.get("mqv:filter", unquote(_path(href).removeprefix("/"))))
    qos = form.get("mqv:qos", 1)
    message: Table = {
        "qos": int(qos) if str(qos) in ("0", "1", "2") else 1,
        "retain": form.get("mqv:retain") is True,
    }
    if not isinstance(topic, str):
        raise UnusableError(f"{at}.mqv:filter", "write one topic, without wildcards")
    return FormPlace("mqtt", topic, media(form, at, ("json", "text")), message, {})


def broker_of(href: str, brokers: Mapping[str, BrokerSettings]) -> str | None:
    """The name of the broker of an MQTT URI, if it is one of ours."""
    try:
        parts = urlsplit(href)
        port, host = parts.port, parts.hostname
    except ValueError:
        return None
    if parts.scheme.lower() not in ("mqtt", "mqtts"):
        return None
    at = _host(host or ""), port or (8883 if parts.scheme.lower() == "mqtts" else 1883)
    return next((name for name, one in brokers.items() if (_host(one.host), one.port) == at), None)


def _host(name: str) -> str:
    return {"localhost": "127.0.0.1"}.get(name.lower(), name.lower())


def _path(href: str) -> str:
    return "/" + href.partition("://")[2].partition("/")[2].partition("?")[0]
