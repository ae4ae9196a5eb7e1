"""URIs of resources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.adapters.mapping import uris
from lamplighter.engine.errors import PayloadError
from tests.support.tables import each_row


@each_row(
    ("written", "normal"),
    [
        ("coap://LAMP-1.local/State", "coap://lamp-1.local/State"),
        ("COAP://lamp:5683/a", "coap://lamp/a"),
        ("coap://lamp:05684/a?x=1&y", "coap://lamp:5684/a?x=1&y"),
        ("coap://lamp", "coap://lamp/"),
        ("coap://[FE80::1]:61616/a", "coap://[fe80::1]:61616/a"),
        ("coap://192.0.2.7/a/", "coap://192.0.2.7/a/"),
        ("HTTP://Meter:80", "http://meter/"),
        ("https://meter:443/a?b=%20", "https://meter/a?b=%20"),
        ("https://meter:80/", "https://meter:80/"),
        ("Modbus+TCP://plc:502/1/40001?quantity=2", "modbus+tcp://plc/1/40001?quantity=2"),
    ],
)
def test_one_resource_has_one_spelling(written: str, normal: str) -> None:
    assert uris.normal(written) == normal


@each_row(
    ("resource", "authority", "place", "name"),
    [
        ("coap://lamp/a", "lamp", ("lamp", 5683), "lamp/a"),
        ("coap://lamp:7/b", "lamp:7", ("lamp", 7), "lamp~7/b"),
        ("coap://[::1]:7/b", "[::1]:7", ("::1", 7), "==1~7/b"),
        ("coap://[fe80::1]/3303/0/5700", "[fe80::1]", ("fe80::1", 5683), "fe80==1/3303/0/5700"),
        ("http://lamp/a", "lamp", ("lamp", 80), "lamp~80/a"),
        ("http://lamp:8080/a", "lamp:8080", ("lamp", 8080), "lamp~8080/a"),
        ("https://lamp/a", "lamp:443", ("lamp", 443), "lamp~443/a"),
        ("https://[::1]/a", "[::1]:443", ("::1", 443), "==1~443/a"),
        ("modbus+tcp://plc/1/7", "plc", ("plc", 502), "plc~502/1/holding_register-7"),
        ("coap://lamp/a+b?x=1", "lamp", ("lamp", 5683), "lamp/a%2Bb?x=1"),
    ],
)
def test_parts_and_name_of_a_resource(resource: str, authority: str, place: tuple[str, int], name: str) -> None:
    assert uris.authority(resource) == authority
    assert uris.host_and_port(resource) == place
    assert uris.name(resource) == name


@each_row(
    ("written", "reason"),
    [
        ("ftp://lamp/a", "begin with coap://, http://"),
        ("coaps://lamp/a", "DTLS is not available; write coap://"),
        ("/state", "begin with coap://"),
        ("http://me:secret@lamp/a", "a http:// URI has neither"),
        ("http://lamp/" + "a" * 2_000, "longer than 2,000"),
        ("coap:///state", "host"),
        ("coap://:5683/state", "host"),
        ("coap://lamp:0/state", "port"),
        ("coap://lamp:99999/state", "not a URI"),
        ("coap://lamp:x/state", "not a URI"),
        ("coap://[::1/state", "not a URI"),
        ("coap://la mp/state", "not a URI"),
        ("coap://lamp/state\n", "not a URI"),
        (f"coap://{'a' * 64}/state", "not a URI"),
        ("coap://lamp..local/state", "not a URI"),
        ("coap://me@lamp/state", "user name"),
        ("coap://lamp/state#on", "fragment"),
        ("coap://224.0.1.187/state", "multicast"),
        ("coap://[ff02::fd]/state", "multicast"),
        ("coap://lamp/%ff", "not a valid coap:"),
        ("coap://1.2.3./state", "not a valid coap:"),
        ("coap://lamp/\ud800", "not a valid coap:"),
        ("coap://lamp/" + "a" * 256, "longer than 255"),
        ("coap://lamp/a?" + "b" * 256, "longer than 255"),
    ],
)
def test_other_uris_are_refused(written: str, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        uris.normal(written)


@given(st.one_of(st.text(), st.from_regex(r"coap://[\[\]a-z0-9.:%@]*[/?#].*")))
def test_any_text_is_a_resource_or_is_refused(text: str) -> None:
    try:
        normal = uris.normal(text)
    except PayloadError:
        return
    assert uris.normal(normal) == normal
    assert uris.name(normal)


@given(
    st.from_regex(
        r"coap://([a-z][a-z0-9.-]{0,5}|\[[0-9a-f:]{1,9}\])(:[0-9]{1,5})?(/[a-z+=~:]{0,3}){0,3}", fullmatch=True
    ),
    st.data(),
)
def test_different_devices_have_different_names(text: str, data: st.DataObject) -> None:
    other = data.draw(st.sampled_from([text, text.replace(":", "~", 2), text.replace("=", ":"), text + "1"]))
    try:
        resources = uris.normal(text), uris.normal(other)
    except PayloadError:
        return
    assert (uris.authority(resources[0]) == uris.authority(resources[1])) == (
        uris.authority_name(uris.authority(resources[0])) == uris.authority_name(uris.authority(resources[1]))
    )


def test_long_uris_have_a_normal_form_too_and_are_not_remembered() -> None:
    long = "coap://LAMP/" + "/".join(["a" * 200] * 10)
    before = uris._remembered.cache_info().currsize
    assert uris.normal(long) == long.replace("LAMP", "lamp")
    assert uris._remembered.cache_info().currsize == before


def test_where_only_coap_is_spoken_other_schemes_are_refused() -> None:
    assert uris.coap("COAP://lamp") == "coap://lamp/"
    for other in ("http://lamp/", "https://lamp/", "modbus+tcp://lamp/1/2"):
        with pytest.raises(PayloadError, match="only coap://"):
            uris.coap(other)
