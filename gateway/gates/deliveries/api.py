"""What the doors with deliveries have in common: their paths, their JSON, and the run of their deliveries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.change_log import Receiver
from lamplighter.engine.errors import MalformedRequestError, UnknownResourceError
from lamplighter.engine.protocol import dataset
from lamplighter.engine.terms import Term
from lamplighter.gateway.gates.deliveries.registry import DeliveryRegistry, new_id
from lamplighter.gateway.gates.deliveries.worker import DeliveryRequest, DeliveryWorker, WaitingNotification
from lamplighter.gateway.gates.http.answers import JsonAnswer
from lamplighter.gateway.gates.http.calls import json_body
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.gates.http.sparql import cause
from lamplighter.gateway.gates.sinks import ALIAS_ECHOED_MAX
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.settings.deliveries import LeasedDeliverySettings
from lamplighter.gateway.state.applications import DeclaredApplications

BODY_BYTES_MAX = 256 * 1024
UNSUBSCRIBED = "unsubscribed"  # why a delivery has ended that its client deleted


class QueryReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The members of a request that name a query. query: its text; or application and name: one of a JSAP file, with
    forced bindings: variable -> value as text."""

    query: str | None = None
    default_graph_uri: str | list[str] | None = msgspec.field(name="default-graph-uri", default=None)
    named_graph_uri: str | list[str] | None = msgspec.field(name="named-graph-uri", default=None)
    application: str | None = None
    name: str | None = None
    forced_bindings: dict[str, Any] = {}


Graphs = tuple[Term, ...] | None


def resolve_query(reference: QueryReference, applications: DeclaredApplications) -> tuple[str, Graphs, Graphs]:
    """The text of a query, and its graphs. Raises MalformedRequestError, UnknownResourceError, GatewayError."""
    if reference.query is not None:
        if reference.application is not None or reference.name is not None or reference.forced_bindings:
            raise MalformedRequestError("give query, or application and name, with its forced_bindings; not both")
        return reference.query, *dataset(reference.default_graph_uri, reference.named_graph_uri)
    if reference.application is None or reference.name is None:
        raise MalformedRequestError("give query, a SPARQL text, or application and name, a query of its JSAP file")
    if reference.default_graph_uri is not None or reference.named_graph_uri is not None:
        raise MalformedRequestError("the application names the graphs of its query; leave them out")
    application = applications.get(reference.application)
    if application is None or reference.name not in application.profile.queries:
        raise UnknownResourceError(
            f"no application has the query {f'{reference.application}/{reference.name}'[:200]!r}"
        )
    return application.profile.whole_query_text(reference.name, {}, reference.forced_bindings), None, None


class WantedDelivery(QueryReference, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A new delivery. lease: ISO 8601 duration; alias: repeated in each notification."""

    lease: str | None = None
    alias: str | None = None


class _DeliveryChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one that is there. lease: begins now; waiting: what to do with what waits for its receiver: ``resend`` it at
    once, or ``drop`` it, after which a fresh first result follows."""

    lease: str | None = None
    waiting: Literal["resend", "drop"] | None = None


class DeliveryApi(ABC):
    """``/NAME`` and ``/NAME/ID``. A door fills in what its receivers are asked and sent. name: of the table in the
    settings, of the path and of the component; kind: in the log; wanted: the body of a registration."""

    name: str
    kind: str
    wanted: type[WantedDelivery]

    def __init__(
        self, runner: Runner, settings: Settings, data: Path, applications: DeclaredApplications, address: str
    ) -> None:
        """address: URL of the HTTP gate from other machines, with a slash at its end."""
        self.runner = runner
        self.settings = settings
        self._data = data
        self._applications = applications
        self.address = address.rstrip("/")

    @property
    @abstractmethod
    def table(self) -> LeasedDeliverySettings: ...

    @abstractmethod
    async def request(self, worker: DeliveryWorker, message: WaitingNotification, part: int) -> DeliveryRequest | None:
        """The request that delivers a notification."""

    @abstractmethod
    async def receiver_url(self, wanted: WantedDelivery, topic: str, lease_s: int | None) -> str:
        """The URL of a receiver that wants the notifications. Raises RequestError."""

    async def confirm_end(self, worker: DeliveryWorker) -> Mapping[str, object]:
        """Tells the receiver that its client has ended the delivery. Members of the answer."""
        return {}

    async def tell_end(self, worker: DeliveryWorker) -> None:  # noqa: B027 - LDN has no such message
        """Tells the receiver that nothing follows, if it can be told. `DeliveryWorker.ended` has the reason."""

    def secrets(self, name: str) -> Mapping[str, str]:
        """What only the client is told that registers: members of the answer."""
        return {}

    @property
    def manual(self) -> str:
        return "docs/webhooks-ldn.md"

    @cached_property
    def deliveries(self) -> DeliveryRegistry:
        return DeliveryRegistry(self.runner, self.table, self._data, self)

    def routes(self) -> Iterator[Route]:
        yield Route(f"/{self.name}", self._all, Permission.CALLER, frozenset({"GET", "POST"}))
        yield Route(f"/{self.name}/", self._one, Permission.CALLER, frozenset({"GET", "POST", "DELETE"}))

    async def run(self) -> None:
        await self.deliveries.run()

    def topic(self, name: str) -> str:
        return f"{self.address}/{self.name}/{name}"

    async def _all(self, request: Request, caller: Caller) -> Response:
        await self.deliveries.recovered.wait()
        if request.method == "GET":
            rows = [self._members(worker, caller) for worker in self.deliveries.of(caller)]
            return JsonAnswer({"total": len(rows), self.name: rows})
        wanted = await json_body(request, self.wanted, BODY_BYTES_MAX)
        if wanted.alias is not None and len(wanted.alias) > ALIAS_ECHOED_MAX:
            raise MalformedRequestError(f"alias: {ALIAS_ECHOED_MAX} characters are the most")
        sparql, default_graphs, named_graphs = resolve_query(wanted, self._applications)
        until, lease_s = self.deliveries.lease(wanted.lease, self.table.lease_s_max)
        name = new_id()
        secrets = self.secrets(name)
        with self.deliveries.asking(caller):
            url = await self.receiver_url(wanted, self.topic(name), lease_s)
            receiver = Receiver(self.kind, name, url, until, wanted.alias)
            worker = await self.deliveries.begin(sparql, default_graphs, named_graphs, receiver, caller)
        headers = {"Location": self.topic(name), "Cache-Control": "no-store"}
        return JsonAnswer({**self._members(worker, caller), **secrets}, 201, headers)

    async def _one(self, request: Request, caller: Caller) -> Response:
        await self.deliveries.recovered.wait()
        worker = self.deliveries.one(request.scope["below"], caller)
        if request.method == "DELETE":
            await worker.stop(UNSUBSCRIBED)
            return JsonAnswer({"id": worker.id, **await self.confirm_end(worker)})
        if request.method == "POST":
            wanted = await json_body(request, _DeliveryChange, BODY_BYTES_MAX)
            if wanted.lease is None and wanted.waiting is None:
                raise MalformedRequestError('give lease, such as "P10D", or waiting: "resend" or "drop"')
            if wanted.lease is not None:
                until, _ = self.deliveries.lease(wanted.lease, self.table.lease_s_max)
                receiver = msgspec.structs.replace(worker.receiver, until=until)
                await worker.renew(receiver, cause(request, caller))
            if wanted.waiting is not None:
                worker.decide(wanted.waiting)
        return JsonAnswer(self._members(worker, caller))

    def _members(self, worker: DeliveryWorker, caller: Caller) -> dict[str, Any]:
        receiver, followed = worker.receiver, worker.followed
        owner = {"client": followed.identity} if caller.operator else {}
        return {
            "id": worker.id,
            "topic": self.topic(worker.id),
            "receiver": receiver.url,
            "alias": receiver.alias,
            "until": receiver.until or None,
            "query": followed.sparql,
            **owner,
            **worker.members(),
        }
