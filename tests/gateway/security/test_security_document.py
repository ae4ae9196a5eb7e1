"""Settings that docs/secure.md names."""

from __future__ import annotations

import re
import tomllib

import msgspec

from lamplighter.adapters.coap.server_settings import CoapServerSettings
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.gateway.settings import QuotaSettings, Settings
from lamplighter.gateway.settings.deliveries import DeliverySettings
from lamplighter.gateway.settings.security import SecuritySettings
from tests.support.places import ROOT

DOCUMENT = (ROOT / "docs" / "secure.md").read_text()


def test_the_settings_named_are_settings() -> None:
    names = {field.name for field in msgspec.structs.fields(SecuritySettings)}
    examples = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.S)
    assert examples
    for example in examples:
        msgspec.convert(tomllib.loads(example), Settings)
    named = set(re.findall(r"`(?:security\.)?([a-z]+(?:_[a-z]+)+)`", DOCUMENT)) | set(
        re.findall(r"`security\.([a-z_]+)`", DOCUMENT)
    )
    names |= {
        field.name
        for table in (CoapSettings, CoapServerSettings, DeliverySettings, QuotaSettings)
        for field in msgspec.structs.fields(table)
    }
    others = {"client_credentials", "cors_error", "invalid_grant", "wrong_host"}
    assert named - names <= others
    assert len(named & names) > 10
