"""Producer, consumer and aggregator on a JSAP profile (Roffia 2016, II.B; Roffia 2018, 3.3; SEPA protocol, section 4).

Updates and queries are sent over HTTP to the addresses that the profile gives for each of them, subscriptions over
WebSocket. So one program can use several brokers and endpoints. Forced bindings are given as a row of a result, whose
terms are used unchanged and whose other variables are ignored, or as keywords, interpreted as the profile declares.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from types import NoneType
from typing import Any, Self, TypedDict, Unpack
from urllib.parse import urlsplit

from lamplighter.engine.client.connection import EngineClient
from lamplighter.engine.client.http import SparqlEndpoint
from lamplighter.engine.client.messages import Notification, Tokens, UpdateAnswer
from lamplighter.engine.client.oauth import Credentials, OAuth
from lamplighter.engine.client.profile import load_profile
from lamplighter.engine.client.results import Triple
from lamplighter.engine.errors import ArgumentTypeError, ConfigurationError, UpstreamError, check_function, check_type
from lamplighter.engine.protocol.jsap import GraphNames, HttpAddress, Jsap
from lamplighter.engine.sparql.clauses import parts
from lamplighter.engine.terms import Bag, Term

# Variable -> term, as `Bag.bindings` gives them.
Row = Mapping[str, Term]

Handler = Callable[[Notification], Awaitable[None] | None]

_NOTHING: Row = {}


class Options(TypedDict, total=False):
    """Options of all clients of a profile.

    credentials: for brokers in secure mode (the profile's ``oauth``), or the file with them. ca: file with the
    certificates to trust instead of the machine's. keep: ISO 8601 duration for which the gateway retains notifications
    while the connection is broken; other brokers ignore it, and send a new first result. name: for the log. delta:
    whether the answers to updates are to tell what they changed; other brokers ignore it.
    """

    credentials: Credentials | str | Path | None
    ca: Path | str | None
    keep: str | None
    name: str
    delta: bool


class GenericClient:
    """All updates and queries of a profile, used as ``async with GenericClient("chat.jsap") as client``.

    profile: a profile, or the file or address of one. Raises JsapError, ConfigurationError.
    """

    def __init__(self, profile: Jsap | str | Path, **options: Unpack[Options]) -> None:
        unknown = set(options) - set(Options.__annotations__)
        if unknown:
            raise ArgumentTypeError(
                f"{min(unknown)}: no option of a client; there are {', '.join(Options.__annotations__)}"
            )
        ca = options.get("ca")
        check_type("profile", profile, Jsap, str, Path)
        check_type("ca", ca, str, Path, NoneType)
        check_type("credentials", options.get("credentials"), Credentials, str, Path, NoneType)
        check_type("keep", options.get("keep"), str, NoneType)
        check_type("name", options.get("name", ""), str)
        check_type("delta", options.get("delta", False), bool)
        self.profile = profile if isinstance(profile, Jsap) else load_profile(profile, ca=ca)
        self._ca = ca
        self._keep = options.get("keep")
        self._name = options.get("name", "client")
        self._delta = options.get("delta", False)
        self._tokens = self._tokens_of(options.get("credentials"))
        self._endpoints: dict[tuple[HttpAddress, str], SparqlEndpoint] = {}
        self._connections: dict[str, EngineClient] = {}
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._open.aclose()
        self._endpoints.clear()
        self._connections.clear()

    async def update(self, name: str, row: Row = _NOTHING, /, **values: Any) -> UpdateAnswer | None:
        """Runs an update of the profile, and returns when it has taken effect.

        Members ``delay``, ``at``, ``missed`` and ``priority`` of the update are sent as parameters, extensions of
        Lamplighter. Returns the gateway's answer, None from other endpoints. Raises JsapError, ForcedBindingError,
        RefusedError, UpstreamError.
        """
        check_call(name, row)
        text = self.profile.update_text(name, row, values)
        entry = self.profile.update(name)
        graphs = self.profile.graphs_of(entry)
        if any(part.names_dataset() for part in parts(text)):
            graphs = GraphNames()  # the text takes precedence: both together are an error (SPARQL 1.1 Protocol, 2.2.3)
        told = {"delay": entry.delay, "at": entry.at, "missed": entry.missed, "priority": entry.priority}
        endpoint = await self._endpoint(self.profile.update_address(name), "update")
        return await endpoint.update(
            text,
            using_graphs=graphs.using,
            using_named_graphs=graphs.using_named,
            extensions={key: value for key, value in told.items() if value is not None},
            delta=self._delta,
        )

    async def query(self, name: str, row: Row = _NOTHING, /, **values: Any) -> Bag:
        """The result of a SELECT query of the profile. Raises JsapError, ForcedBindingError, RefusedError,
        UpstreamError.
        """
        endpoint, text, graphs = await self._prepare(name, row, values)
        return await endpoint.query(text, **graphs)

    async def ask(self, name: str, row: Row = _NOTHING, /, **values: Any) -> bool:
        """The result of an ASK query of the profile. Raises as `query`."""
        endpoint, text, graphs = await self._prepare(name, row, values)
        return await endpoint.ask(text, **graphs)

    async def construct(self, name: str, row: Row = _NOTHING, /, **values: Any) -> list[Triple]:
        """The triples of a CONSTRUCT or DESCRIBE query of the profile. Raises as `query`."""
        endpoint, text, graphs = await self._prepare(name, row, values)
        return await endpoint.construct(text, **graphs)

    async def subscribe(self, name: str, row: Row = _NOTHING, /, **values: Any) -> AsyncGenerator[Notification, None]:
        """The notifications of a query of the profile, from the first result on. Ends only by `aclose` or an error.

        With ``"reconnect": false`` in the profile, a broken connection is an UpstreamError. Raises JsapError,
        ForcedBindingError, RefusedError, UpstreamError.
        """
        check_call(name, row)
        text = self.profile.query_text(name, row, values)
        graphs = self.profile.graphs_of(self.profile.query(name))
        connection = await self._connection(self.profile.subscribe_url(name))
        notifications = connection.subscribe(
            text, keep=self._keep, default_graphs=graphs.default, named_graphs=graphs.named
        )
        known = None
        async with aclosing(notifications):
            async for notification in notifications:
                if known is not None and notification.sequence == 0 and not self.profile.reconnects(name):
                    raise UpstreamError(f"{name}: the connection broke, and the profile says not to come again")
                known = notification
                yield notification

    async def _prepare(
        self, name: str, row: Row, values: Mapping[str, Any]
    ) -> tuple[SparqlEndpoint, str, dict[str, tuple[str, ...]]]:
        check_call(name, row)
        graphs = self.profile.graphs_of(self.profile.query(name))
        endpoint = await self._endpoint(self.profile.query_address(name), "query")
        text = self.profile.query_text(name, row, values)
        return endpoint, text, {"default_graphs": graphs.default, "named_graphs": graphs.named}

    async def _endpoint(self, address: HttpAddress, kind: str) -> SparqlEndpoint:
        if (address, kind) not in self._endpoints:
            endpoint = SparqlEndpoint(
                query_url=address.url if kind == "query" else "",
                update_url=address.url if kind == "update" else "",
                query_method=address.method,
                update_method=address.method,
                tokens=self._tokens_for(address.url),
                ca=self._ca,
            )
            self._endpoints[address, kind] = await self._open.enter_async_context(endpoint)
        return self._endpoints[address, kind]

    async def _connection(self, url: str) -> EngineClient:
        if url not in self._connections:
            client = EngineClient(url, name=self._name, tokens=self._tokens_for(url), ca=self._ca)
            self._connections[url] = await self._open.enter_async_context(client)
        return self._connections[url]

    def _tokens_of(self, credentials: Credentials | str | Path | None) -> Tokens | None:
        oauth = self.profile.oauth
        if not oauth.enable:
            return None
        if oauth.token_url is None:
            raise ConfigurationError("oauth.enable is true, but there is no oauth.tokenRequest; add the address")
        if credentials is None:
            raise ConfigurationError(
                "oauth.enable is true: give credentials, or the file that they were saved in when the client registered"
            )
        found = credentials if isinstance(credentials, Credentials) else Credentials.load(credentials)
        return OAuth(oauth.token_url, found, ca=self._ca, provider=oauth.provider)

    def _tokens_for(self, url: str) -> Tokens | None:
        """The tokens for requests to an address, None for another host than the profile's broker.

        Raises ConfigurationError for an address to which they would be sent unencrypted.
        """
        if self._tokens is None or self._host_of(url) != self._host_of(self.profile.oauth.token_url or ""):
            return None
        if urlsplit(url).scheme not in ("https", "wss"):
            raise ConfigurationError(
                f"oauth.enable is true, and {url} is unencrypted: say https and wss in the profile"
            )
        return self._tokens

    @staticmethod
    def _host_of(url: str) -> str | None:
        return urlsplit(url).hostname


def check_call(name: object, row: object) -> None:
    """Raises ArgumentTypeError for what is no name of an update or query, or no row."""
    check_type("name", name, str)
    check_type("row", row, Mapping)


class _Pattern:
    """The common part of the three patterns: a client of their own."""

    def __init__(self, profile: Jsap | str | Path, **options: Unpack[Options]) -> None:
        self._client = GenericClient(profile, **options)

    @property
    def profile(self) -> Jsap:
        return self._client.profile

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._client.__aexit__(*exception)


class Producer(_Pattern):
    """One update of a profile, used as ``async with Producer("chat.jsap", "SEND") as sender``.

    options: those of `GenericClient`.
    """

    def __init__(self, profile: Jsap | str | Path, update: str, **options: Unpack[Options]) -> None:
        super().__init__(profile, **options)
        check_type("update", update, str)
        self.profile.update(update)  # raises for an unknown name
        self._update = update

    async def update(self, row: Row = _NOTHING, /, **values: Any) -> UpdateAnswer | None:
        """Runs the update, as `GenericClient.update` does."""
        return await self._client.update(self._update, row, **values)


class Consumer(_Pattern):
    """The notifications of one query of a profile: ``async for notification in consumer``, or `run` with a handler.

    values: its forced bindings. options: those of `GenericClient`. Raises JsapError, ForcedBindingError.
    """

    def __init__(
        self, profile: Jsap | str | Path, query: str, values: Mapping[str, Any] = _NOTHING, **options: Unpack[Options]
    ) -> None:
        super().__init__(profile, **options)
        check_type("query", query, str)
        check_type("values", values, Mapping)
        self.profile.query_text(query, _NOTHING, values)  # raises for a missing value
        self._notifications = self._client.subscribe(query, **values)

    async def __aexit__(self, *exception: object) -> None:
        await self._notifications.aclose()
        await super().__aexit__(*exception)

    def __aiter__(self) -> AsyncGenerator[Notification, None]:
        return self._notifications

    async def run(self, handler: Handler) -> None:
        """Calls the handler with each notification in turn. Ends only by an error or cancellation."""
        check_function("handler", handler)
        async for notification in self:
            done = handler(notification)
            if done is not None:
                await done


class Aggregator(Consumer):
    """A consumer with an update: the notifications of one query, and one update at the same or another endpoint.

    values: the forced bindings of the query. options: those of `GenericClient`.
    """

    def __init__(
        self,
        profile: Jsap | str | Path,
        query: str,
        update: str,
        values: Mapping[str, Any] = _NOTHING,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(profile, query, values, **options)
        check_type("update", update, str)
        self.profile.update(update)  # raises for an unknown name
        self._update = update

    async def update(self, row: Row = _NOTHING, /, **values: Any) -> UpdateAnswer | None:
        """Runs the update, as `GenericClient.update` does."""
        return await self._client.update(self._update, row, **values)
