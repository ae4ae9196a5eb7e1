"""Paths of LDN: the inbox ``/inbox/``, and ``/ldn`` for subscriptions that are delivered to inboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

import pyoxigraph as ox
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.client.inboxes import ACCEPT, INBOX, JSON_LD, LDP, NoInboxError, inbox_in_body, inbox_in_links
from lamplighter.engine.client.outward import OutwardHttp
from lamplighter.engine.errors import LimitExceededError, MalformedRequestError, RequestError, UpstreamError
from lamplighter.gateway.gates.deliveries.api import DeliveryApi, WantedDelivery
from lamplighter.gateway.gates.deliveries.registry import checked_url
from lamplighter.gateway.gates.deliveries.worker import DeliveryRequest, DeliveryWorker, WaitingNotification, failure
from lamplighter.gateway.gates.http.answers import MethodError, error_answer
from lamplighter.gateway.gates.http.calls import content_type, small_body
from lamplighter.gateway.gates.http.negotiation import negotiate, request_iri
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.gates.http.sparql import cause
from lamplighter.gateway.gates.ldn.activities import activity
from lamplighter.gateway.gates.ldn.inbox import LdnInbox, serialize
from lamplighter.gateway.gates.ldn.notifications import (
    MEDIA_TYPES,
    TURTLE,
    check_media_type,
    constraints,
    parse_notification,
    too_large,
)
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.settings.deliveries import LeasedDeliverySettings
from lamplighter.gateway.state.applications import DeclaredApplications

PATH: Final = "/inbox/"
CONSTRAINTS: Final = "/ldn/constraints"
_FORMATS = (JSON_LD, TURTLE, "application/n-triples")
_LONG_BYTES = 256 * 1024  # a longer notification is written beside the loop
_RDF_TYPE = ox.NamedNode("http://www.w3.org/1999/02/22-rdf-syntax-ns#type")
_COMMENT = ox.NamedNode("http://www.w3.org/2000/01/rdf-schema#comment")


class _WantedInbox(WantedDelivery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """inbox: the URL of an inbox; or target: of a resource that advertises one."""

    inbox: str | None = None
    target: str | None = None


class LinkedDataNotifications(DeliveryApi):
    """The door, and the kind of its deliveries."""

    name = "ldn"
    kind = "ldn"
    wanted = _WantedInbox

    def __init__(
        self, runner: Runner, settings: Settings, data: Path, applications: DeclaredApplications, address: str
    ) -> None:
        super().__init__(runner, settings, data, applications, address)
        self._inbox = LdnInbox(runner, settings.gateway.base_iri, settings.ldn.inbox_max)

    @property
    def table(self) -> LeasedDeliverySettings:
        return self.settings.ldn

    def about(self) -> Iterator[tuple[str, str]]:
        yield PATH, "inbox of Linked Data Notifications: POST JSON-LD or Turtle; GET lists them"
        yield "/ldn", "subscriptions that are delivered to inboxes: POST {query, inbox or target}; /ldn/<id>"

    def routes(self) -> Iterator[Route]:
        yield from super().routes()
        yield Route(CONSTRAINTS, self._constraints, Permission.NOTHING)
        # Below it are the notifications; the rest of its own path is empty.
        yield Route(PATH, self._below, Permission.CALLER, frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS"}))

    # --- the kind of its deliveries ---

    async def request(self, worker: DeliveryWorker, message: WaitingNotification, part: int) -> DeliveryRequest:
        arguments = message, self.topic(worker.id), f"{self.address}/", worker.receiver.alias
        if message.size > _LONG_BYTES:
            body = await asyncio.to_thread(activity, *arguments)
        else:
            body = activity(*arguments)
        headers = {"Content-Type": JSON_LD, "User-Agent": "lamplighter", "Idempotency-Key": message.name}
        return DeliveryRequest(headers, body)

    async def receiver_url(self, wanted: WantedDelivery, topic: str, lease_s: int | None) -> str:
        """An inbox is there to be sent to, so it is not asked."""
        assert isinstance(wanted, _WantedInbox)
        if (wanted.inbox is None) == (wanted.target is None):
            raise MalformedRequestError("give inbox, the URL of an inbox, or target, of a resource that has one")
        if wanted.target is not None:
            target = checked_url(wanted.target, self.table.ports, self.name, "target")
            return checked_url(
                await inbox_of(self.deliveries.asking_http, target), self.table.ports, self.name, "the inbox"
            )
        return checked_url(wanted.inbox or "", self.table.ports, self.name, "inbox")

    # --- the inbox ---

    async def _below(self, request: Request, caller: Caller) -> Response:
        name = request.scope["below"]
        if request.method == "OPTIONS":
            response = Response(status_code=204)
        elif name:
            response = await self._notification(request, caller, name)
        elif request.method == "POST":
            response = await self._post(request, caller)
        elif request.method == "DELETE":
            raise MalformedRequestError("the inbox itself cannot be deleted; DELETE a notification below it")
        else:
            response = await self._list(request, caller)
        if not name:
            response.headers["Accept-Post"] = ", ".join(MEDIA_TYPES)
            response.headers["Allow"] = "GET, HEAD, OPTIONS, POST"
            response.headers.append("Link", f'<{CONSTRAINTS}>; rel="{LDP}constrainedBy"')
            response.headers.append("Link", f'<{LDP}Container>; rel="type"')
        return response

    async def _post(self, request: Request, caller: Caller) -> Response:
        """A refusal has the headers of the inbox too, which say where its constraints are."""
        try:
            caller.access.write.check([self._inbox.graph], "write")
            media_type = content_type(request)
            check_media_type(media_type)
            bytes_max = self.settings.ldn.notification_bytes_max
            try:
                body = await small_body(request, bytes_max)
            except LimitExceededError as error:
                raise too_large(bytes_max) from error
            iri = self._inbox.new()
            quads = await parse_notification(self.runner.rdf_bodies, body, media_type, f"<{iri}>", iri, caller.client)
            await self._inbox.add(iri, quads, caller, cause(request, caller))
        except RequestError as error:
            return error_answer(error)
        return Response(status_code=201, headers={"Location": _inbox_url(request) + iri.removeprefix(self._inbox.iri)})

    async def _list(self, request: Request, caller: Caller) -> Response:
        caller.access.read.check([self._inbox.graph], "read")
        found = negotiate(request, _FORMATS)
        url = _inbox_url(request)
        notices = await self._inbox.notices()
        contained = [ox.NamedNode(url + one.iri.removeprefix(self._inbox.iri)) for one in notices]
        inbox = ox.NamedNode(url)
        triples = [
            ox.Triple(inbox, _RDF_TYPE, ox.NamedNode(f"{LDP}Container")),
            ox.Triple(inbox, ox.NamedNode(f"{LDP}constrainedBy"), ox.NamedNode(url[: -len(PATH)] + CONSTRAINTS)),
            *(ox.Triple(inbox, ox.NamedNode(f"{LDP}contains"), one) for one in contained),
        ]
        return Response(serialize(triples, found.format), 200, {"Vary": "Accept"}, found.media_type)

    async def _notification(self, request: Request, caller: Caller, name: str) -> Response:
        iri = self._inbox.iri_of(name)
        if request.method == "DELETE":
            await self._inbox.remove(iri, caller, cause(request, caller))
            return Response(status_code=204)
        if request.method == "POST":
            raise MethodError("POST", ("DELETE", "GET", "HEAD", "OPTIONS"), "at a notification")
        caller.access.read.check([self._inbox.graph], "read")
        found = negotiate(request, _FORMATS)
        content = await self._inbox.content(iri, found.format, _inbox_url(request))
        return Response(content, 200, {"Vary": "Accept"}, found.media_type)

    async def _constraints(self, request: Request, caller: Caller) -> Response:
        found = negotiate(request, _FORMATS)
        here = request_iri(request)
        triples = [
            ox.Triple(ox.NamedNode(f"{here}#{name}"), _COMMENT, ox.Literal(text, language="en"))
            for name, text in constraints(self.settings.ldn.notification_bytes_max).items()
        ]
        return Response(serialize(triples, found.format), 200, {"Vary": "Accept"}, found.media_type)


async def inbox_of(http: OutwardHttp, target: str) -> str:
    """The inbox of a target (LDN, section 3.1): of a Link header, or of its RDF. Raises NoInboxError."""
    try:
        answer = await http.send("GET", target, {"Accept": ACCEPT})
    except UpstreamError as error:
        raise NoInboxError(f"target: {error}") from error
    linked = inbox_in_links(answer.headers.get("link", ""))
    if linked is not None:
        return urljoin(target, linked)
    reason = failure(answer)
    if reason:
        raise NoInboxError(f"target: {reason}")
    try:
        inbox = inbox_in_body(answer.body, answer.headers.get("content-type", ""), target)
    except RequestError as error:
        raise NoInboxError(f"target: its body cannot be read: {error}") from error
    if inbox is None:
        raise NoInboxError("target: it advertises no inbox, neither by a Link header nor in its RDF; give inbox")
    return inbox


def _inbox_url(request: Request) -> str:
    iri = request_iri(request)
    return iri[: iri.index(PATH) + len(PATH)]


LINK: Final = f'<{PATH}>; rel="{INBOX}"'  # the header that advertises the inbox
