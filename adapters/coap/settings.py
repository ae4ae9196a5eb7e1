"""The table ``[coap]`` of ``lamplighter.toml``."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from lamplighter.adapters import networks
from lamplighter.adapters.coap.server_settings import CoapDiscoverySettings, CoapServerSettings
from lamplighter.adapters.devices.desired import desired_pattern
from lamplighter.adapters.mapping import uris
from lamplighter.engine.errors import PayloadError
from lamplighter.ontology.vocabulary import COAP_RESOURCE

DEFAULT_QUERY = (
    f"SELECT ?actuator ?resource ?payload WHERE {{ ?actuator <{COAP_RESOURCE}> ?resource . "
    f"{desired_pattern('payload')} }}"
)

Seconds = Annotated[float, msgspec.Meta(gt=0)]


def normal_authority(text: str) -> str:
    """A host, or host and port, as in a URI in normal form. Raises PayloadError."""
    uri = uris.normal(f"coap://{text}/")
    authority = urlsplit(uri).netloc
    if uri != f"coap://{authority}/":
        raise PayloadError(f"{text} is a URI or a path; write a host or host:port")
    return authority


class CoapDeviceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table ``[coap.devices.NAME]``. NAME is also the name of the device's key.

    address: host or host:port, as in the URIs of the device.
    security: "oscore": messages are protected by the key of this name; "plain": the device has no key.
    queries: names of the queries of applications that the device may read.
    max_age_s: instead of the Max-Age of the device, for one that sends none or a wrong one.
    """

    address: str
    security: Literal["oscore", "plain"] = "oscore"
    queries: tuple[str, ...] = ()
    max_age_s: Annotated[float, msgspec.Meta(gt=0)] | None = None

    def __post_init__(self) -> None:
        try:
            normal_authority(self.address)
        except PayloadError as error:
            raise ValueError(f"address: {error}") from error


class CoapSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The query for commands, the networks of devices, the time-outs of requests, and the bounds of readings.

    enabled: whether the adapter is started.
    networks: the networks that commands may go to, such as ``192.168.7.0/24``; ``private`` stands for the private
        networks of the machine, without loopback and link-local addresses. Clients that may write the graph choose the
        devices, so this list is the limit. For a name, its resolved address counts.
    query: a SPARQL SELECT with the variables ``?actuator`` (an IRI), ``?resource`` (a coap:// URI) and
        ``?payload`` (a literal); one row per device resource. The adapter sends each resource its payload as text,
        unless a [[command]] rule is for the actuator. The first notification is checked for the three variables.
    plain: the networks whose devices need no key (OSCORE), as in networks; without it all devices, or with
        ``security.enabled`` none. Devices with a key, or with a table below, are not concerned.
    devices: tables ``[coap.devices.NAME]``.
    server, discovery: the tables ``[coap.server]`` and ``[coap.discovery]``.
    reassert_s: the state of a device that cannot be read is sent again after so long; 0: never. A [[command]] rule
        may have its own interval.
    contact_write_s: how often the last contact with a device that answers is written to the dataset.
    resources_max: resources of devices that are observed or polled, of sensors and of actuators each.
    streams_max: streams of sensors in one run; further ones are refused. Each stays in the gateway's store.
    model, events_kept: of readings, as in ``[mqtt]``.
    concurrency_max: concurrent requests over all devices; each device gets one at a time (RFC 7252 section 4.7).
        Retries use at most half of them, so that unreachable devices do not delay the others.
    ack_timeout_s, retransmissions_max: RFC 7252 section 4.8. A request that is not acknowledged within 1 to 1.5 times
        the time-out is sent again, and the wait doubles. The RFC advises against less than 1 s. An outdated state
        is not retransmitted.
    answer_timeout_s: time limit of an attempt, with name resolution and separate answers.
    retry_min_s, retry_max_s: the wait after the first failed attempt doubles from the one to the other, less up to
        half at random. After a refusal (4.xx) the adapter waits for retry_max_s.
    """

    enabled: bool = True
    networks: tuple[str, ...] = (networks.PRIVATE,)
    query: Annotated[str, msgspec.Meta(min_length=1)] = DEFAULT_QUERY
    concurrency_max: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 32
    ack_timeout_s: Seconds = 1.0
    retransmissions_max: Annotated[int, msgspec.Meta(ge=0, le=10)] = 2
    answer_timeout_s: Seconds = 15.0
    retry_min_s: Seconds = 0.2
    retry_max_s: Seconds = 30.0
    plain: tuple[str, ...] | None = None
    devices: dict[str, CoapDeviceSettings] = {}
    server: CoapServerSettings = CoapServerSettings()
    discovery: CoapDiscoverySettings = CoapDiscoverySettings()
    reassert_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 60.0
    contact_write_s: Seconds = 600.0
    resources_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 2_000
    streams_max: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    model: Literal["latest", "event"] = "latest"
    events_kept: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 10

    def __post_init__(self) -> None:
        networks.parse(self.networks)
        networks.parse(self.plain or ())
        if self.retry_max_s < self.retry_min_s:
            raise ValueError(f"retry_max_s ({self.retry_max_s}) is less than retry_min_s ({self.retry_min_s})")

    def max_age_s(self, device: str, authority: str) -> float | None:
        """That of the table of a device. device: its name, or ""; then its address counts, in normal form."""
        for name, one in self.devices.items():
            if device == name or (not device and normal_authority(one.address) == authority):
                return one.max_age_s
        return None
