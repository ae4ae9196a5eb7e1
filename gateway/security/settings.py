"""The table ``[security]`` of ``lamplighter.toml``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Registration = Literal["open", "listed", "code"]


class SecuritySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What protects the gateway on the network.

    enabled: TLS, tokens and permissions at `host`, instead of the plain gates of ``[http]`` and ``[websocket]``.
    plain_on_network: allows plain gates on addresses that other machines reach.
    names: names and addresses in the certificate besides those that the machine has at the start.
    certificate_file, key_file: your own, in PEM, relative to the configuration file; both or none.
    socket_folder: where the Unix sockets are, relative to the data folder. local_users: names of users whose processes
        may connect to them besides root and the gateway's own user; they may do everything.
    registration: who may register: anybody ("open"), names that the operator has listed, or who has a one-time code.
    grant_read, grant_write, grant_subscribe: what a new client may do unless the operator says otherwise: graph IRIs,
        "default" for the default graph, "*" for every graph.
    requests_per_s: of one client; a second's worth more may come at once. attempts_per_min: of one address, without
        good credentials. plain_requests_per_s: of one address in plain mode. 0: any number.
    """

    enabled: bool = False
    host: str = "0.0.0.0"
    https_port: Port = 8443
    wss_port: Port = 9443
    plain_on_network: bool = False
    names: list[str] = []
    certificate_file: str = ""
    key_file: str = ""
    socket_folder: str = "run"
    local_users: list[str] = []
    registration: Registration = "listed"
    code_life_s: Positive = 600
    clients_max: Positive = 1000
    grant_read: list[str] = []
    grant_write: list[str] = []
    grant_subscribe: list[str] = []
    token_life_s: Positive = 43_200
    test_identity: bool = False
    requests_per_s: Count = 1000
    attempts_per_min: Count = 60
    plain_requests_per_s: Count = 0

    def __post_init__(self) -> None:
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("certificate_file and key_file belong together; name both, or none of them")
