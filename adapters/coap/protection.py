"""Which requests are protected: the keys of devices, and who may do without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import aiocoap

from lamplighter.adapters.coap.contexts import Contexts
from lamplighter.adapters.coap.exchanges import Opener, Seal
from lamplighter.adapters.coap.settings import CoapDeviceSettings, normal_authority
from lamplighter.adapters.mapping.uris import COAP_PORT
from lamplighter.adapters.networks import Address, Networks, refusal
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.log_events import EventLogger

# How often new keys are looked for.
CHECK_S = 2.0

logger = EventLogger(__name__)


class NewKeys:
    """Takes keys that are made while the adapter runs. on_new: called with the address of each."""

    def __init__(self, contexts: Contexts, on_new: Callable[[str], None]) -> None:
        self._contexts = contexts
        self._on_new = on_new

    async def run(self) -> None:
        """Runs until cancelled."""
        said = ""
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                names = await asyncio.to_thread(self._contexts.add_new)
            except ConfigurationError as error:
                if str(error) != said:
                    logger.error("coap keys not read", reason=error)
                said = str(error)
                continue
            said = ""
            for name in names:
                if name in self._contexts.problems:
                    logger.error("coap key not usable", context=name, reason=self._contexts.problems[name])
                    continue
                logger.info("coap key found", context=name)
                self._on_new(self._contexts.address(name))


class DeviceProtection:
    """Decides for each device whether its messages are protected.

    plain: the networks whose devices need no key; None: all. A device that has a key never gets a plain message.
    """

    def __init__(self, contexts: Contexts, devices: Mapping[str, CoapDeviceSettings], plain: Networks | None) -> None:
        self._contexts = contexts
        self._devices = devices
        self._names = {normal_authority(device.address): name for name, device in devices.items()}
        self._plain = plain

    def seal(self, device: str, uri: str, address: Address) -> Seal | None:
        """What protects requests to a device; None: nothing.

        device: its name in a rule, or ""; uri: in normal form; address: of its host. Raises PayloadError if the
        device needs a key and has none, or one that cannot be used.
        """
        port = urlsplit(uri).port or COAP_PORT
        host = f"[{address}]" if address.version == 6 else f"{address}"
        # By name and by address: another name of the device must not make its requests plain.
        places = urlsplit(uri).netloc, host if port == COAP_PORT else f"{host}:{port}"
        name = device or next((self._names[place] for place in places if place in self._names), "")
        # The operator says so: it counts more than a key.
        if name in self._devices and self._devices[name].security == "plain":
            return None
        try:
            context = self._contexts.named(name) if name else self._contexts.of(*places)
        except ConfigurationError as error:
            raise PayloadError(str(error)) from error
        if context is None:
            if not self.permits_plain(address):
                raise PayloadError(
                    f"{places[0]} has no key, and its address is in none of the networks that coap.plain allows; "
                    f"make a key with `lamplighter devices key NAME --address {places[0]}`"
                )
            return None
        from lamplighter.adapters.coap.secured import SentRequest  # loaded with the context

        def protect(message: aiocoap.Message) -> tuple[aiocoap.Message, Opener]:
            sent = SentRequest(context, message)
            return sent.outer, sent.inner

        return protect

    def permits_plain(self, address: Address) -> bool:
        """Whether messages from and to an address may be unprotected."""
        return self._plain is None or not refusal(address, self._plain.current())
