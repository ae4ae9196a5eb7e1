"""Forms of a submitted Thing Description with coap:// (W3C WoT CoAP Binding)."""

from __future__ import annotations

from collections.abc import Sequence

from lamplighter.adapters.devices.device import Table
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


def coap_place(thing: DescribedThing, form: Table, schema: Table, href: str, at: str, ops: Sequence[str]) -> FormPlace:
    """As `FormReader`."""
    form_media = media(form, at)
    if not set(thing.schemes(form)) <= set(OPEN):
        cure = "the scheme is not used for CoAP; write nosec, and make a key with `lamplighter devices key`"
        raise UnusableError(f"{at}.security", cure)
    chosen = "PUT" if reads(ops) else method(form, "cov:method", at, ops)
    message: Table = {"content_format": form_media} | ({"method": chosen} if chosen != "PUT" else {})
    return FormPlace("coap", resource(href, at), form_media, message, {"accept": form_media})
