"""Which hosts and which pages are served, by mode and settings. tests/e2e/test_browsers.py tries it in a browser."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lamplighter.engine.errors import ConfigurationError, ForeignRequestError
from lamplighter.gateway.security.browsers import Browsers
from lamplighter.gateway.settings import read_settings
from lamplighter.gateway.settings.security import SecuritySettings
from tests.support.tables import each_row

PAGE = "https://dashboard.example"
MACHINE = socket.gethostname()


def browsers(listening: tuple[str, ...] = ("127.0.0.1",), **settings: Any) -> Browsers:
    found = Browsers(SecuritySettings(**settings), listening)
    found.page_port = 8000
    return found


def judged(judge: Browsers, link: bool = False, version: str = "1.1", **headers: str) -> str | int:
    """The origin that is told, "" for none, or the status of the refusal."""
    headers = {"host": "localhost:8000", **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items() if value]
    try:
        return (judge.origin(raw, version, link=link) or b"").decode()
    except ForeignRequestError as error:
        return error.status


LOOPBACK = [
    *("localhost", "localhost:8000", "LOCALHOST:1", "localhost.", "app.localhost:8000", "127.0.0.1", "127.0.0.1:65535"),
    *("127.1.2.3:80", "[::1]", "[::1]:8000", "[0:0:0:0:0:0:0:1]:8000", "[::ffff:127.0.0.1]:8000", "localhost:"),
]
FOREIGN = [
    *("evil.example", "evil.example:8000", "localhost.evil.example", "evil-localhost", "127.0.0.1.evil.example"),
    *("localhost:8000@evil.example", "user@localhost", "127.1", "0x7f.1", "0177.0.0.1", "2130706433", "[::1", "::1"),
    *("[localhost]", "localhost:x", "localhost/", "localhost evil", "[::1%25lo]", "a" * 5000, "localhost:123456"),
]
OWN = [MACHINE, f"{MACHINE.upper()}:8000", f"{MACHINE.partition('.')[0]}.local:8000"]
ADDRESSES = ["192.168.1.7:8000", "0.0.0.0:8000", "[fd00::1]:8000", "203.0.113.9"]


@each_row("host", LOOPBACK)
@each_row("settings", [{}, {"plain_on_network": True}, {"enabled": True}])
def test_loopback_is_always_served(host: str, settings: dict[str, bool]) -> None:
    assert judged(browsers(**settings), host=host) == ""


@each_row("host", FOREIGN)
@each_row("on_network", [False, True])
def test_other_names_and_what_is_no_host_are_not_served_in_plain_mode(host: str, on_network: bool) -> None:
    assert judged(browsers(plain_on_network=on_network), host=host) == 421


@each_row("host", [host for host in [*OWN, *ADDRESSES] if host.lower() != "localhost"])
def test_the_machine_s_own_names_and_addresses_are_served_on_the_network_only(host: str) -> None:
    assert judged(browsers(), host=host) == 421
    assert judged(browsers(plain_on_network=True), host=host) == ""


def test_listed_hosts_are_served_and_those_that_the_gates_listen_at() -> None:
    judge = browsers(("lamps", "0.0.0.0"), hosts=["Gateway.example", "192.0.2.7", "[fd00::1]", "fd00::2"])
    for host in (
        *("gateway.example:8000", "GATEWAY.example", "192.0.2.7", "[fd00::1]:80", "[fd00:0::2]", "lamps:8000"),
        "0.0.0.0:8000",
    ):
        assert judged(judge, host=host) == "", host
    for host in ("www.gateway.example", "192.0.2.8"):
        assert judged(judge, host=host) == 421


def test_one_host_is_needed() -> None:
    for settings in ({}, {"enabled": True}):
        judge = browsers(**settings)
        assert judged(judge, host="") == 400
        assert judged(judge, host="", version="1.0") == ""  # nobody had to say so then
        with pytest.raises(ForeignRequestError, match="one header Host"):
            judge.origin([(b"host", b"localhost"), (b"host", b"localhost")], "1.1", link=False)


def test_a_name_that_has_no_certificate_is_nothing_that_secure_mode_looks_at() -> None:
    assert judged(browsers(enabled=True), host="lamps.example:8443") == ""


@each_row("enabled", [False, True])
@each_row(
    "origin",
    [
        *("null", "http://localhost:3000", "http://127.0.0.1:8000", "https://localhost:3000", "file://"),
        *("http://dashboard.example", f"{PAGE}:444", f"{PAGE}.evil.example", "*", "localhost:8000", "http://localhost"),
        *("ftp://localhost:8000", "http://localhost:8000/", "http://user@localhost:8000", "http://evil.example:8000"),
    ],
)
def test_other_origins_are_refused_in_both_modes(origin: str, enabled: bool) -> None:
    assert judged(browsers(enabled=enabled, origins=[PAGE]), origin=origin) == 403
    assert judged(browsers(enabled=enabled, origins=["*"]), origin=origin) == origin


def test_listed_origins_and_the_gateway_s_own_are_told() -> None:
    judge = browsers(origins=[PAGE, "chrome-extension://abcdefgh"])
    for origin in (PAGE, "chrome-extension://abcdefgh", "http://localhost:8000"):
        assert judged(judge, origin=origin) == origin
    # The page comes from the HTTP gate, and the request goes to the other one.
    assert judged(judge, host="localhost:9000", origin="http://localhost:8000") == "http://localhost:8000"
    assert judged(judge, host="localhost:9000", origin="http://localhost:8001") == 403
    assert judged(judge, host="127.0.0.1:9000", origin="http://localhost:8000") == 403
    # Behind a proxy with TLS of its own, which hands on the name.
    proxied = browsers(hosts=["lamps.example"])
    assert judged(proxied, host="lamps.example", origin="https://lamps.example") == "https://lamps.example"


def test_two_origins_are_refused() -> None:
    with pytest.raises(ForeignRequestError, match="one Origin") as caught:
        browsers(origins=[PAGE]).origin(
            [(b"host", b"localhost"), (b"origin", PAGE.encode()), (b"origin", PAGE.encode())], "1.1", link=False
        )
    assert caught.value.status == 401  # SEPA protocol, 1.4


@each_row("site", ["cross-site", "same-site", "anything else"])
def test_what_another_site_s_page_embeds_or_links_to_is_refused(site: str) -> None:
    judge = browsers(origins=[PAGE])
    assert judged(judge, sec_fetch_site=site) == 403
    assert judged(judge, link=True, sec_fetch_site=site, sec_fetch_mode="no-cors", sec_fetch_dest="image") == 403
    navigation = {"sec_fetch_site": site, "sec_fetch_mode": "navigate"}
    assert judged(judge, link=True, sec_fetch_dest="document", **navigation) == ""
    assert judged(judge, link=True, sec_fetch_dest="iframe", **navigation) == 403
    assert judged(judge, link=False, sec_fetch_dest="document", **navigation) == 403
    assert judged(browsers(origins=["*"]), sec_fetch_site=site) == ""


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_what_the_user_types_in_is_served(site: str) -> None:
    assert judged(browsers(), sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="document") == ""


def test_other_settings_hold_from_the_next_request_on() -> None:
    judge = browsers()
    assert (judged(judge, origin=PAGE), judged(judge, host="lamps.example")) == (403, 421)
    judge.apply(SecuritySettings(origins=[PAGE], hosts=["lamps.example"]))
    assert (judged(judge, origin=PAGE), judged(judge, host="lamps.example")) == (PAGE, "")
    judge.apply(SecuritySettings())
    assert (judged(judge, origin=PAGE), judged(judge, host="lamps.example")) == (403, 421)


def test_the_log_names_the_setting_once_for_each_page(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    judge = browsers()
    for _ in range(3):
        assert judged(judge, origin=PAGE) == 403
        assert judged(judge, host="lamps.example") == 421
    assert ["security.origins" in caplog.messages[0], "security.hosts" in caplog.messages[1]] == [True, True]
    for number in range(1000):
        judged(judge, host=f"{number}.example")
    assert len(caplog.messages) == 100


def test_every_page_in_plain_mode_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    browsers(enabled=True, origins=["*"])
    assert not caplog.messages
    browsers(origins=["*"])
    assert "every web page" in caplog.text


@each_row(
    ("key", "value"),
    [
        *(("origins", value) for value in ("null", "dashboard.example", f"{PAGE}/", f"{PAGE}:443", "http://x:80")),
        *(("origins", value) for value in ("https://Dashboard.example", "https://*.example", "", "https://u@x")),
        *(("hosts", value) for value in ("lamps:8000", "http://lamps", "*", "", "a b", "[lamps]")),
    ],
)
def test_a_value_that_could_never_match_stops_the_start(tmp_path: Path, key: str, value: str) -> None:
    toml = tmp_path / "lamplighter.toml"
    toml.write_text(f"[security]\n{key} = [{msgspec.json.encode(value).decode()}]\n")
    with pytest.raises(ConfigurationError, match=rf"security\.{key}: "):
        read_settings(toml)


# --- the gateway's own page, whose cookie counts -------------------------------------------------------

OWN_ORIGIN = "https://lamps.example:8443"


def is_own(writes: bool = False, connects: bool = False, **headers: str) -> bool:
    judge = browsers(enabled=True, origins=[PAGE])
    judge.page_port = 8443
    headers = {"host": "lamps.example:8443", **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items() if value]
    return judge.is_own_page(raw, writes=writes, connects=connects)


def test_the_own_page_reads_by_its_origin_or_as_the_same_origin() -> None:
    assert is_own(origin=OWN_ORIGIN)
    assert is_own(sec_fetch_site="same-origin")
    assert is_own(origin=OWN_ORIGIN, sec_fetch_site="same-origin")
    assert not is_own()


@each_row("site", ["cross-site", "same-site", "none", "Same-Origin", "same-origin, same-origin"])
def test_other_sites_do_not_read(site: str) -> None:
    assert not is_own(sec_fetch_site=site)


@each_row(
    "origin",
    [
        *(PAGE, "null", "https://evil.example", "https://lamps.example", "https://lamps.example:8444", "x", "file://"),
        "http://lamps.example:8443",  # of an attacker in the network, who has no certificate
    ],
)
def test_other_origins_are_not_own(origin: str) -> None:
    assert not is_own(origin=origin)
    assert not is_own(origin=origin, sec_fetch_site="same-origin")
    assert not is_own(origin=origin, writes=True, x_lamplighter_page="1")
    assert not is_own(origin=origin, connects=True)


def test_what_writes_has_origin_and_header() -> None:
    assert is_own(writes=True, origin=OWN_ORIGIN, x_lamplighter_page="1")
    assert not is_own(writes=True, origin=OWN_ORIGIN)
    assert not is_own(writes=True, origin=OWN_ORIGIN, x_lamplighter_page="true")
    assert not is_own(writes=True, x_lamplighter_page="1")
    assert not is_own(writes=True, sec_fetch_site="same-origin", x_lamplighter_page="1")


def test_a_handshake_has_an_origin_and_may_come_to_another_port() -> None:
    assert is_own(connects=True, origin=OWN_ORIGIN, host="lamps.example:9443")
    assert not is_own(connects=True, sec_fetch_site="same-origin", host="lamps.example:9443")
    assert not is_own(connects=True, origin="https://other.example:8443", host="lamps.example:9443")


def test_several_hosts_origins_or_headers_are_nobodys() -> None:
    judge = browsers(enabled=True)
    judge.page_port = 8443
    host, origin = (b"host", b"lamps.example:8443"), (b"origin", OWN_ORIGIN.encode())
    header = (b"x-lamplighter-page", b"1")
    assert judge.is_own_page([host, origin, header], writes=True)
    for twice in (host, origin, header):
        assert not judge.is_own_page([host, origin, header, twice], writes=True)
    assert not judge.is_own_page([origin])
    assert not judge.is_own_page([(b"host", b"a" * 400), (b"origin", b"https://" + b"a" * 400)])
