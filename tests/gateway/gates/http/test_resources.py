"""The IRIs that a path of the HTTP gate may mean."""

from __future__ import annotations

import time

from starlette.requests import Request

from lamplighter.gateway.gates.http.negotiation import negotiate
from lamplighter.gateway.gates.http.resources import TARGET_BYTES_MAX, requested_iris, resources_path
from tests.support.tables import each_row

BASE = "http://lamplighter.local/"


@each_row(
    ("path", "iris"),
    [
        (b"/sensor/kitchen", ["sensor/kitchen"]),
        (b"/stream/a;gateway:motion;b", ["stream/a;gateway:motion;b"]),
        (b"/a%2Fb%20c%23%3F", ["a%2Fb%20c%23%3F"]),
        (b"/k%C3%BCche", ["k%C3%BCche", "küche"]),
        (b"/k%C3%BCche%20%7E", ["k%C3%BCche%20%7E", "küche%20~"]),
        (b"/%F0%9F%92%A1", ["%F0%9F%92%A1", "💡"]),
        (b"/%00", ["%00"]),
        (b"/%3E%22%7B%7D%5C", ["%3E%22%7B%7D%5C"]),  # what an IRI cannot hold stays encoded
        (b"/%C3%28%FF", ["%C3%28%FF"]),  # not UTF-8
        (b"/%E2%80%AE%C2%80%EE%80%80", ["%E2%80%AE%C2%80%EE%80%80"]),  # invisible and private signs
        (b"/%", ["%"]),
        (b"/../x", ["../x"]),
        (b"//evil.example/x", ["/evil.example/x"]),
        (b"/\xff", []),
    ],
)
def test_a_path_means_the_iri_as_sent_and_as_decoded(path: bytes, iris: list[str]) -> None:
    assert list(requested_iris(BASE, path, b"")) == [BASE + iri for iri in iris]


def test_a_query_belongs_to_the_iri() -> None:
    assert list(requested_iris(BASE, b"/x", b"a=1")) == [f"{BASE}x?a=1"]


def test_only_iris_below_the_base_iri_are_meant() -> None:
    base = "https://house.example:8443/gw/"
    assert list(requested_iris(base, b"/gw/sensor/1", b"")) == [f"{base}sensor/1"]
    assert list(requested_iris(base, b"/g%77/sensor/1", b"")) == [f"{base}sensor/1"]
    assert list(requested_iris(base, b"/other/1", b"")) == []


@each_row(
    ("base", "path"),
    [
        (BASE, "/"),
        ("https://house.example/gw/", "/gw/"),
        ("http://house.example/k%C3%BCche/", "/küche/"),
        ("urn:gateway:", None),
        ("http://house.example/gw#", None),
        ("http://house.example/gw#/", None),
        ("http://house.example/?at=/", None),
        ("http://house.example", None),
        ("", None),
    ],
)
def test_base_iris_with_paths_below_are_served(base: str, path: str | None) -> None:
    assert resources_path(base) == path


def test_a_long_path_means_no_iri() -> None:
    assert len(list(requested_iris(BASE, b"/" + b"a" * (TARGET_BYTES_MAX - 1), b""))) == 1
    assert list(requested_iris(BASE, b"/" + b"%C3%BC" * 10_000, b"")) == []


def test_a_long_accept_header_takes_little_time() -> None:
    """Time of the event loop, which all clients share."""
    begun = time.thread_time()
    for header in (b"text/html" + b"," * 65_000, b"text/html," + b"a/b;q=0.1," * 6_500):
        request = Request({"type": "http", "headers": [(b"accept", header)]})
        for _ in range(20):
            assert negotiate(request, ["text/html"]).format == "text/html"
    assert time.thread_time() - begun < 0.5
