"""The forms of a submitted Thing Description, by protocol (W3C WoT TD 1.1, section 8.3, and the bindings for CoAP and
MQTT), and what all have in common. Those of Modbus are in a module of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from lamplighter.adapters.devices.device import Table
from lamplighter.adapters.devices.draft import plain
from lamplighter.adapters.http.settings import origin
from lamplighter.adapters.mapping import uris
from lamplighter.adapters.mqtt.settings import BrokerSettings
from lamplighter.adapters.specs import Kind
from lamplighter.engine.errors import PayloadError
from lamplighter.gateway.settings import Settings

OPEN = ("nosec", "auto")  # security schemes that need no credentials
_METHOD: Final = "htv:methodName"
# Media types -> names of content formats; "": of none that a single value is read from.
_FORMATS = {
    "": "json",
    "application/json": "json",
    "application/senml+json": "",
    "text/plain": "text",
    "application/cbor": "cbor",
}


class UnusableError(ValueError):
    """Why a form or an affordance cannot be used. field: its path."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field


class FormPlace(NamedTuple):
    """Where a form reads or writes. kind: of the adapter; text: a topic, or the URI of a resource; media: name of its
    content format; message: keys of the command that say how it is sent; reading: further keys of the table that reads
    it."""

    kind: Kind
    text: str
    media: str
    message: Table
    reading: Table


@dataclass(frozen=True)
class DescribedThing:
    """What forms are read with. document: checked Thing Description; settings: of the gateway."""

    document: Mapping[str, Any]
    settings: Settings

    def schemes(self, form: Table) -> list[str]:
        used = form.get("security", self.document["security"])
        definitions = self.document["securityDefinitions"]
        return [definitions[name]["scheme"] for name in (used if isinstance(used, list) else [used])]


class FormReader(Protocol):
    def __call__(
        self, thing: DescribedThing, form: Table, schema: Table, href: str, at: str, ops: Sequence[str]
    ) -> FormPlace:
        """schema: of the value; href: absolute URI of the form; at: path of the form; ops: the operations that it is
        wanted for, the most general last. Raises UnusableError."""
        ...


def media(form: Table, at: str, permitted: Collection[str] = ("json", "cbor", "text")) -> str:
    """The name of the content format of a form. Raises UnusableError."""
    text = form.get("contentType", "")
    found = _FORMATS.get(text.partition(";")[0].strip().lower(), "") if isinstance(text, str) else ""
    if not found or found not in permitted:
        known = [name for name, one in _FORMATS.items() if name and one in permitted]
        raise UnusableError(f"{at}.contentType", f"write {', '.join(known[:-1])} or {known[-1]}")
    return found


def method(form: Table, key: str, at: str, ops: Sequence[str]) -> str:
    """The method of a form that writes: of the key, else PUT, or POST for an action. Raises UnusableError."""
    found = form.get(key, "POST" if "invokeaction" in ops else "PUT")
    if found not in ("PUT", "POST"):
        raise UnusableError(f"{at}.{key}", "write PUT or POST")
    return str(found)


def reads(ops: Sequence[str]) -> bool:
    return ops[-1] == "readproperty"


def resource(href: str, at: str) -> str:
    """A URI of a resource as rules have it. Raises UnusableError."""
    try:
        return uris.normal(href)
    except PayloadError as error:
        example = f"{plain(urlsplit(href).scheme, 20)}://HOST/PATH"
        raise UnusableError(f"{at}.href", f"{plain(str(error), 200)}; write {example}") from error


def coap_place(thing: DescribedThing, form: Table, schema: Table, href: str, at: str, ops: Sequence[str]) -> FormPlace:
    """As `FormReader`."""
    form_media = media(form, at)
    if not set(thing.schemes(form)) <= set(OPEN):
        cure = "the scheme is not used for CoAP; write nosec, and make a key with `lamplighter devices key`"
        raise UnusableError(f"{at}.security", cure)
    chosen = "PUT" if reads(ops) else method(form, "cov:method", at, ops)
    message: Table = {"content_format": form_media} | ({"method": chosen} if chosen != "PUT" else {})
    return FormPlace("coap", resource(href, at), form_media, message, {"accept": form_media})


def http_place(thing: DescribedThing, form: Table, schema: Table, href: str, at: str, ops: Sequence[str]) -> FormPlace:
    """As `FormReader`. A device with a web server is polled, also for observeproperty."""
    if not thing.settings.http_devices.enabled:
        raise UnusableError(f"{at}.href", "http_devices.enabled is false in lamplighter.toml; set it to true")
    form_media, uri = media(form, at), resource(href, at)
    _check_security(thing, form, uri, at)
    if "subprotocol" in form:
        raise UnusableError(f"{at}.subprotocol", "properties are polled; write a form without subprotocol, too")
    if reads(ops):
        if form.get(_METHOD, "GET") != "GET":
            raise UnusableError(f"{at}.{_METHOD}", "write GET, for a property is read by it")
        return FormPlace("http-devices", uri, form_media, {}, {"accept": form_media})
    chosen = method(form, _METHOD, at, ops)
    message: Table = {"content_format": form_media} | ({"method": chosen} if chosen != "PUT" else {})
    return FormPlace("http-devices", uri, form_media, message, {"accept": form_media})


def _check_security(thing: DescribedThing, form: Table, uri: str, at: str) -> None:
    """Raises UnusableError if a scheme needs credentials that the settings do not have."""
    known = thing.settings.http_devices.device(uri)
    for scheme in thing.schemes(form):
        if scheme in OPEN or (known is not None and known.scheme == scheme):
            continue
        if scheme in ("basic", "bearer"):
            cure = f"name a secret of {origin(uri)} for {scheme} in [http_devices.devices.NAME]"
        else:
            cure = "write nosec, basic or bearer"
        raise UnusableError(f"{at}.security", f"the gateway has no credentials for this scheme; {cure}")


def mqtt_place(thing: DescribedThing, form: Table, href: str, at: str, ops: Sequence[str], *, used: str) -> FormPlace:
    """As `FormReader`. used: the broker of the thing. The security of a broker is that of lamplighter.toml."""
    name = broker_of(href, thing.settings.mqtt.all_brokers())
    if name is None or name != used:
        cure = "name it in [mqtt] or [mqtt.brokers.NAME]" if name is None else "all forms of a thing have one broker"
        raise UnusableError(f"{at}.href", f"no broker of lamplighter.toml that can be used is there; {cure}")
    topic = form.get("mqv:topic", form.get("mqv:filter", unquote(_path(href).removeprefix("/"))))
    qos = form.get("mqv:qos", 1)
    message: Table = {"qos": int(qos) if str(qos) in ("0", "1", "2") else 1, "retain": form.get("mqv:retain") is True}
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
