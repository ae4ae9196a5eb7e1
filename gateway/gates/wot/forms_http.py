"""Forms of a submitted Thing Description with http:// and https:// (W3C WoT TD 1.1, section 8.3): a device with a web
server. Its properties are polled, also for observeproperty."""

from __future__ import annotations

from collections.abc import Sequence

from lamplighter.adapters.devices.device import Table
from lamplighter.adapters.http.settings import origin
from lamplighter.gateway.gates.wot.forms import (
    OPEN,
    DescribedThing,
    FormPlace,
    UnusableError,
    media,
    method,
    reads,
    resource,
)

_METHOD = "htv:methodName"


def http_place(thing: DescribedThing, form: Table, schema: Table, href: str, at: str, ops: Sequence[str]) -> FormPlace:
    """As `FormReader`."""
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
