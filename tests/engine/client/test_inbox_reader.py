"""The consumer of Linked Data Notifications, by the cases of the W3C's test suite for consumers
(linkedresearch.org/ldn/tests/consumer), and what others can make it call.

The notifications are like those of the suite: each has the statement by which the suite recognises it.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import rdflib
from rdflib.compare import isomorphic

from lamplighter.engine.client.contexts import with_contexts
from lamplighter.engine.client.inbox_reader import DOCUMENT_BYTES_MAX, REDIRECTS_MAX, InboxReader
from lamplighter.engine.client.inboxes import INBOX, LDP, TRIPLES_BYTES_MAX, NoInboxError, triples_of
from lamplighter.engine.client.outward import AddressRefusedError
from lamplighter.engine.errors import (
    ConfigurationError,
    GatewayError,
    LimitExceededError,
    RefusedError,
    RequestSyntaxError,
    UnsupportedRequestError,
    UpstreamError,
)
from lamplighter.engine.rdflib import graph_to_rdflib
from tests.support.receivers import HttpReceiver, Received, Reply
from tests.support.tables import each_row

JSON_LD, TURTLE = "application/ld+json", "text/turtle"
AS, RDF_TYPE = "https://www.w3.org/ns/activitystreams", "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
HTTP_AS = AS.replace("https", "http")
"""The suite's expanded notifications have the vocabulary's old name."""


class Site:
    """A web server with RDF. put: a document at a path; origin: of the site."""

    def __init__(self, receiver: HttpReceiver) -> None:
        self.receiver = receiver
        self.replies: dict[str, Reply] = {}
        receiver.confirm = lambda request: self.replies.get(request.path, Reply(404))

    @property
    def origin(self) -> str:
        return self.receiver.url("")

    @property
    def asked(self) -> list[Received]:
        return self.receiver.asked

    def put(self, path: str, body: Any = b"", media_type: str = JSON_LD, **headers: str) -> str:
        """Its URL. body: text, or a value for JSON."""
        data = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        self.replies[path] = Reply(200, {"Content-Type": media_type, **headers}, data)
        return self.origin + path

    def redirect(self, path: str, to: str) -> str:
        self.replies[path] = Reply(302, {"Location": to})
        return self.origin + path


@pytest.fixture
def site() -> Iterator[Site]:
    with HttpReceiver() as receiver:
        yield Site(receiver)


@pytest.fixture
def other() -> Iterator[Site]:
    """A site at another port, so of another origin."""
    with HttpReceiver() as receiver:
        yield Site(receiver)


def listing(inbox: str, *urls: str) -> dict[str, Any]:
    """An inbox in compacted JSON-LD, as the suite's."""
    return {"@context": "http://www.w3.org/ns/ldp", "@id": inbox, "@type": "Container", "contains": list(urls)}


@asynccontextmanager
async def suite(site: Site) -> AsyncIterator[Callable[[str], InboxReader]]:
    """The suite's two targets with their inboxes. Gives a reader of a target."""
    a, b = site.origin + "/inbox-compacted/", site.origin + "/inbox-expanded/"
    site.put("/discover-inbox-link-header", "<p>In the header.</p>", "text/html", Link=f'<{a}>; rel="{INBOX}"')
    site.put("/discover-inbox-rdf-body", f"<> <{INBOX}> <inbox-expanded/> .", TURTLE)
    site.put("/inbox-compacted/", listing(a, *(a + name for name in ("announce", "changelog", "citation"))))
    contained = [{"@id": b + name} for name in ("assessing", "comment", "rsvp")]
    site.put("/inbox-expanded/", [{"@id": b, "@type": [f"{LDP}Container"], f"{LDP}contains": contained}])
    for path, document in NOTIFICATIONS.items():
        site.put(path, document)
    readers: list[InboxReader] = []

    def reader(path: str) -> InboxReader:
        readers.append(InboxReader(site.origin + path))
        return readers[-1]

    yield reader
    for one in readers:
        await one.__aexit__()


NOTIFICATIONS: dict[str, Any] = {
    "/inbox-compacted/announce": {
        "@context": AS,
        "@id": "",
        "@type": "Announce",
        "actor": "http://example.org/anna",
        "object": "http://example.net/note",
        "updated": "2016-06-28T19:56:20.114Z",
    },
    "/inbox-compacted/changelog": {
        "@context": [{"prov": "http://www.w3.org/ns/prov#"}],
        "@id": "http://example.org/activity/804c4e7efaa828e146b4ada1c805617ffbc79dc7",
        "@type": "prov:Activity",
        "prov:generated": {"@id": "http://example.org/entity", "@type": "prov:Entity"},
        "prov:wasAssociatedWith": {"http://xmlns.com/foaf/0.1/name": {"@language": "hy", "@value": "Սարվէն"}},
    },
    "/inbox-compacted/citation": {
        "@context": "https://schema.org/docs/jsonldcontext.jsonld",
        "@id": "http://example.net/note#foo",
        "citation": {"@id": "http://example.org/article#results"},
    },
    "/inbox-expanded/assessing": [
        {
            "@id": "http://example.org/inbox/14a792f0",
            "@type": [f"{HTTP_AS}#Announce"],
            f"{HTTP_AS}#object": [
                {
                    "@id": "http://example.net/note",
                    "http://www.w3.org/ns/oa#motivatedBy": [{"@id": "http://www.w3.org/ns/oa#assessing"}],
                }
            ],
        }
    ],
    "/inbox-expanded/comment": [
        {
            "@id": "",
            "@type": ["http://rdfs.org/sioc/ns#Comment"],
            "http://rdfs.org/sioc/ns#content": [{"@language": "en", "@value": "This is a great article!"}],
            "http://rdfs.org/sioc/ns#reply_of": [{"@id": "http://example.org/article"}],
        }
    ],
    "/inbox-expanded/rsvp": [
        {
            "@id": "",
            "@type": ["http://schema.org/RsvpAction"],
            "http://schema.org/event": [{"@id": "http://example.org/event"}],
        }
    ],
}
HEADER, BODY = "/discover-inbox-link-header", "/discover-inbox-rdf-body"
CASES = {
    "announce": (HEADER, "{}/inbox-compacted/announce", RDF_TYPE, f"{AS}#Announce"),
    "changelog": (
        HEADER,
        "http://example.org/activity/804c4e7efaa828e146b4ada1c805617ffbc79dc7",
        RDF_TYPE,
        "http://www.w3.org/ns/prov#Activity",
    ),
    "citation": (
        HEADER,
        "http://example.net/note#foo",
        "http://schema.org/citation",
        "http://example.org/article#results",
    ),
    "assessing": (
        BODY,
        "http://example.net/note",
        "http://www.w3.org/ns/oa#motivatedBy",
        "http://www.w3.org/ns/oa#assessing",
    ),
    "comment": (
        BODY,
        "{}/inbox-expanded/comment",
        "http://rdfs.org/sioc/ns#reply_of",
        "http://example.org/article",
    ),
    "rsvp": (BODY, "{}/inbox-expanded/rsvp", "http://schema.org/event", "http://example.org/event"),
}
"""Name of a notification -> the target whose inbox has it, and the statement that the suite looks for."""


@pytest.mark.parametrize(("target", "inbox"), [(HEADER, "/inbox-compacted/"), (BODY, "/inbox-expanded/")])
async def test_suite_discovery_and_listing(site: Site, target: str, inbox: str) -> None:
    async with suite(site) as read:
        reader = read(target)
        assert await reader.inbox() == site.origin + inbox
        names = [name for name, (found_by, *_) in CASES.items() if found_by == target]
        assert await reader.urls() == [site.origin + inbox + name for name in names]
    assert {request.headers["accept"].split(",")[0] for request in site.asked} == {JSON_LD}


@pytest.mark.filterwarnings("ignore:ConjunctiveGraph")  # of RDFLib's own parser
@pytest.mark.parametrize("name", CASES)
async def test_suite_notification(site: Site, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, subject, predicate, object_ = CASES[name]
    async with suite(site) as read:
        reader = read(target)
        [url] = [one for one in await reader.urls() if one.endswith(name)]
        triples = await reader.notification(url)
    assert triples.count((f"<{subject.format(site.origin)}>", f"<{predicate}>", f"<{object_}>")) == 1
    [document] = [json.dumps(with_contexts(one)) for path, one in NOTIFICATIONS.items() if path.endswith(name)]
    monkeypatch.setattr(rdflib, "NORMALIZE_LITERALS", False)
    by_rdflib = rdflib.Graph().parse(data=document, format="json-ld", publicID=url)
    assert isomorphic(graph_to_rdflib(triples), by_rdflib)


@pytest.mark.parametrize(
    ("body", "media_type"),
    [
        ({"@context": "http://www.w3.org/ns/ldp", "@id": "", "inbox": "/in/"}, JSON_LD),
        ({"@context": AS, "@graph": [{"id": "", "inbox": "/in/"}, {"id": "#b", "inbox": "/b/"}]}, JSON_LD),
        ([{"@id": "", INBOX: [{"@id": "/in/"}]}], f'{JSON_LD}; profile="http://www.w3.org/ns/json-ld#expanded"'),
        (f"@prefix ldp: <{LDP}> . <#me> ldp:inbox </in/#x> .", TURTLE),
        (
            f'<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:l="{LDP}">'
            '<rdf:Description rdf:about=""><l:inbox rdf:resource="/in/"/></rdf:Description></rdf:RDF>',
            "application/rdf+xml",
        ),
    ],
)
async def test_inbox_by_each_form_of_body(site: Site, body: Any, media_type: str) -> None:
    async with InboxReader(site.put("/a", body, media_type)) as reader:
        assert await reader.inbox() == f"{site.origin}/in/"


@pytest.mark.parametrize(
    "body",
    [
        {"@context": "http://www.w3.org/ns/ldp", "@id": "", "contains": "1"},
        {"@context": "http://www.w3.org/ns/ldp", "@id": "", "contains": ["1", "1"]},
        {"@context": {"has": {"@id": f"{LDP}contains", "@type": "@id"}}, "@graph": [{"@id": "", "has": ["1", "1#a"]}]},
        {"@context": {"@vocab": LDP}, "@id": "", "@graph": [{"@id": "", "contains": [{"@id": "1"}]}]},
        [{"@id": "", f"{LDP}contains": [{"@id": "1"}, {"@value": "2"}]}],
        [{"@id": "#this", f"{LDP}contains": [{"@id": "1"}]}],
        f"@prefix ldp: <{LDP}> . <> a ldp:Container ; ldp:contains <1> . <b/> ldp:contains <2> .",
    ],
)
async def test_one_notification_in_each_form_of_listing(site: Site, body: Any) -> None:
    site.put("/in/", body, TURTLE if isinstance(body, str) else JSON_LD)
    async with InboxReader(f"{site.origin}/in/", is_inbox=True) as reader:
        assert await reader.urls() == [f"{site.origin}/in/1"]


async def test_an_empty_inbox_and_none(site: Site) -> None:
    site.put("/in/", listing(""), Link=f'<>; rel="{INBOX}"')
    async with InboxReader(f"{site.origin}/in/") as reader:
        assert (await reader.inbox(), await reader.urls()) == (f"{site.origin}/in/", [])
    for reply in (Reply(200, {}, b"<p>"), Reply(200, {"Content-Type": TURTLE}, b"<> <http://e/p> 1 .")):
        site.replies["/a"] = reply
        async with InboxReader(f"{site.origin}/a") as reader:
            with pytest.raises(NoInboxError, match="advertises no inbox"):
                await reader.inbox()


# --- what others can make it call --------------------------------------------------------------------------------


async def test_a_notification_elsewhere_is_called_only_if_its_origin_is_allowed(site: Site, other: Site) -> None:
    here, there = (
        site.put("/in/1", NOTIFICATIONS["/inbox-expanded/rsvp"]),
        other.put("/2", "<> <http://e/p> 1 .", TURTLE),
    )
    moved = site.redirect("/in/3", f"{other.origin}/2")
    inbox = site.put("/in/", listing("", here, there, moved))
    async with InboxReader(inbox, is_inbox=True) as reader:
        assert await reader.urls() == [here, there, moved]
        assert len(await reader.notification(here)) == 2
        for url in (there, moved):
            with pytest.raises(UpstreamError, match=re.escape(f"{other.origin} is not allowed")):
                await reader.notification(url)
        assert other.asked == []
    async with InboxReader(inbox, is_inbox=True, origins=[other.origin]) as reader:
        for url in (there, moved):
            assert await reader.notification(url) == [(f"<{there}>", "<http://e/p>", INTEGER)]


INTEGER = '"1"^^<http://www.w3.org/2001/XMLSchema#integer>'


@pytest.mark.parametrize("how", ["link", "body", "redirect"])
async def test_an_inbox_in_the_local_network_of_another_origin_is_not_called(site: Site, other: Site, how: str) -> None:
    inbox = other.put("/in/", listing(""))
    if how == "redirect":
        inbox = site.redirect("/moved/", inbox)
    target = site.put(
        "/a", f"<> <{INBOX}> <{inbox}> .", TURTLE, **({"Link": f"<{inbox}>; rel={INBOX}"} if how == "link" else {})
    )
    async with InboxReader(target) as reader:
        with pytest.raises(AddressRefusedError, match=f"allow the origin {re.escape(other.origin)}"):
            await reader.urls()
    assert other.asked == []
    async with InboxReader(target, origins=[other.origin]) as reader:
        assert await reader.urls() == []
    assert [request.path for request in other.asked] == ["/in/"]


async def test_a_name_with_a_public_address_does_not_lead_into_the_local_network(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name has a public address when it is first resolved, and then that of this machine (DNS rebinding)."""
    answers = [["93.184.216.34", "127.0.0.1"], ["127.0.0.1"]]

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        return [(None, None, None, "", (address, port)) for address in answers.pop(0)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    target = site.put("/a", Link=f'</in/>; rel="{INBOX}"').replace("127.0.0.1", "rebinding.example")
    async with InboxReader(target) as reader:
        with pytest.raises(AddressRefusedError, match="not a public address"):
            await reader.inbox()
    assert (site.asked, answers) == ([], [])


async def test_redirects_are_bounded(site: Site) -> None:
    target = site.put("/a", Link=f'</in/>; rel="{INBOX}"')
    first = target
    for number in range(REDIRECTS_MAX):
        first = site.redirect(f"/{number}", first)
    async with InboxReader(first) as reader:
        assert await reader.inbox() == f"{site.origin}/in/"
    async with InboxReader(site.redirect("/more", first)) as reader:
        with pytest.raises(UpstreamError, match="redirects"):
            await reader.inbox()


class OneToken:
    async def token(self) -> str:
        return "secret"

    def expired(self, token: str) -> None:
        raise AssertionError


async def test_the_token_goes_to_the_origin_of_the_target_only(site: Site, other: Site) -> None:
    target = site.put("/a", Link=f'<{other.origin}/in/>; rel="{INBOX}"')
    back = site.put("/back", "<> <http://e/p> 1 .", TURTLE)
    other.put("/in/", listing("", back))
    async with InboxReader(target, origins=[other.origin], tokens=OneToken()) as reader:
        with pytest.raises(UpstreamError, match="not allowed"):  # an inbox elsewhere leads to nothing here
            await reader.notification(back)
    assert [request.headers.get("authorization") for request in site.asked] == ["Bearer secret"]
    assert [request.headers.get("authorization") for request in other.asked] == [None]
    with pytest.raises(ConfigurationError, match="unencrypted"):
        InboxReader("http://example.org/", tokens=OneToken())


LONG = "http://e/" + "a" * 2000


@pytest.mark.parametrize(
    ("reply", "error", "reason"),
    [
        (Reply(404), RefusedError, "answered 404"),
        (Reply(302, {"Location": "http://[x/"}), UpstreamError, "not a URL"),
        (Reply(302, {"Location": "file:///etc/passwd"}), UpstreamError, "http or https"),
        (Reply(200, {"Content-Type": "text/html"}, b"<p>"), UnsupportedRequestError, "text/html"),
        (Reply(200, {}, b"<> <http://e/p> 1 ."), UnsupportedRequestError, "no media type"),
        (Reply(200, {"Content-Type": TURTLE}, b"<> <http"), RequestSyntaxError, "read as text/turtle"),
        (Reply(200, {"Content-Type": JSON_LD}, b"{"), RequestSyntaxError, "not JSON"),
        (Reply(200, {"Content-Type": JSON_LD}, b'{"@context": "http://e/c"}'), UnsupportedRequestError, "not fetched"),
        (Reply(200, {"Content-Type": JSON_LD}, b"[" * 300 + b"]" * 300), LimitExceededError, "nested"),
        (Reply(200, {"Content-Type": TURTLE}, b"#" * (DOCUMENT_BYTES_MAX + 1)), UpstreamError, "more than"),
        (Reply(None), UpstreamError, "in/1: "),
    ],
)
async def test_a_notification_that_cannot_be_read(
    site: Site, reply: Reply, error: type[GatewayError], reason: str
) -> None:
    site.put("/in/", listing("", "1", "2"))
    site.replies["/in/1"] = reply
    site.put("/in/2", "<> <http://e/p> 1 .", TURTLE)
    async with InboxReader(f"{site.origin}/in/", is_inbox=True) as reader:
        first, second = await reader.urls()
        with pytest.raises(error, match=reason) as raised:
            await reader.notification(first)
        assert site.origin in str(raised.value) or "file:" in str(raised.value)
        assert len(await reader.notification(second)) == 1


def test_a_short_document_of_long_terms_is_refused() -> None:
    """Prefixes and contexts make few bytes a lot of memory."""
    count = TRIPLES_BYTES_MAX // 2000
    turtle = f"@prefix a: <{LONG}> . " + " ".join(f"a:b a:c {number} ." for number in range(count))
    json_ld = {"@context": {"p": LONG}, "@graph": [{"p": number} for number in range(count)]}
    for body, media_type in ((turtle, TURTLE), (json.dumps(json_ld), JSON_LD)):
        assert len(body) < DOCUMENT_BYTES_MAX
        with pytest.raises(LimitExceededError):
            triples_of(body.encode(), media_type, "http://e/")


@each_row("url", ["x", "ftp://e/", "http://", "http://a:b@e/", "http://e:x/", "http://é/", "http://e/ x"])
def test_a_target_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"write one such as"):
        InboxReader(url)
    with pytest.raises(ConfigurationError, match=r"write one such as"):
        InboxReader("http://e/", origins=[url])
