"""The table ``[security]`` of ``lamplighter.toml``."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from lamplighter.engine.client.places import DataFolder, File, Host, ListenPort, LocalUser, ServedHost

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Registration = Literal["open", "listed", "code"]

# RFC 6454, 6.2: names in Punycode.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]{1,5})?")


class SecuritySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What protects the gateway on the network.

    enabled: TLS, tokens and permissions at `host`, instead of the plain gates of ``[http]`` and ``[websocket]``.
    plain_on_network: allows plain gates on addresses that other machines reach.
    hosts: names and addresses of the plain gates besides loopback's, as clients write them, without ports; with
        plain_on_network the machine's own need not be listed.
    origins: whose pages may use the gates from a browser, such as ``https://dashboard.example``; "*" for every page.
    names: names and addresses in the certificate besides those that the machine has at the start.
    certificate_file, key_file: your own, in PEM, relative to the configuration file; both or none.
    socket_folder: where the Unix sockets are, relative to the data folder. local_users: names of users whose processes
        may connect to them besides root and the gateway's own user; they may do everything.
    registration: who may register: who has a one-time code, names that the operator has listed, which is whoever asks
        first under such a name, or anybody ("open").
    grant_read, grant_write, grant_subscribe: what a new client may do unless the operator says otherwise: graph IRIs,
        "default" for the default graph, "*" for every graph.
    first_message_bytes_max, token_wait_s: what a WebSocket client may send before it has shown a good token, and how
        long it may take.
    requests_per_s: of one client; a second's worth more may come at once. attempts_per_min: of one address, without
        good credentials. plain_requests_per_s: of one address in plain mode. 0: any number.
    """

    enabled: bool = False
    host: Host = "::"
    https_port: ListenPort = 8443
    wss_port: ListenPort = 9443
    plain_on_network: bool = False
    hosts: list[ServedHost] = []
    origins: list[str] = []
    names: list[str] = []
    certificate_file: File = ""
    key_file: File = ""
    socket_folder: DataFolder = "run"
    local_users: list[LocalUser] = []
    registration: Registration = "code"
    code_life_s: Positive = 600
    clients_max: Positive = 1000
    grant_read: list[str] = []
    grant_write: list[str] = []
    grant_subscribe: list[str] = []
    token_life_s: Positive = 43_200
    test_identity: bool = False
    first_message_bytes_max: Annotated[int, msgspec.Meta(ge=4096)] = 64 * 1024
    token_wait_s: Positive = 30
    requests_per_s: Count = 1000
    attempts_per_min: Count = 60
    plain_requests_per_s: Count = 0

    def __post_init__(self) -> None:
        faults = []
        if bool(self.certificate_file) != bool(self.key_file):
            faults.append("certificate_file and key_file belong together; name both or neither")
        for origin in self.origins:
            try:
                _check_origin(origin)
            except ValueError as error:
                faults.append(str(error))
        if faults:
            raise ValueError("\n".join(faults))


def _check_origin(origin: str) -> None:
    """Raises ValueError for what no browser sends as the header Origin."""
    if origin == "null":
        raise ValueError(
            'security.origins: any page can be of the origin "null"; serve yours from a web server and list that, '
            'or write "*" to allow every page'
        )
    place = urlsplit(origin)
    port = {"http": ":80", "https": ":443"}.get(place.scheme, "")
    if origin != "*" and (not _ORIGIN.fullmatch(origin) or (port and origin.endswith(port))):
        raise ValueError(
            f"security.origins: {origin!r} is not an origin; write it like browsers, in lower case, without a path and "
            "without the default port of its scheme, such as https://dashboard.example or http://localhost:3000"
        )
