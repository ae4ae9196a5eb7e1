"""A real gateway in this process on free ports, and the small clients that tests talk to it with."""

from __future__ import annotations

import asyncio
import http.client as http_client
import json
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection

from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.log.writer import Recovery
from lamplighter.gateway.service.configuration import Configuration
from lamplighter.gateway.service.process import run_gateway
from lamplighter.gateway.service.shape_files import shape_sources
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.state.applications import load_applications
from tests.support.forks import forks, forks_gone
from tests.support.gateway_process import PING_S

TIMEOUT_S = 120.0  # only a test that hangs waits this long
FORM = "application/x-www-form-urlencoded"

# Not the loop's own threads: the gateway needs those, and they are few.
_threads = ThreadPoolExecutor(64, thread_name_prefix="test client")


@asynccontextmanager
async def running_gateway(folder: Path, **tables: Mapping[str, object]) -> AsyncIterator[Addresses]:
    """A gateway whose data is in folder / "data" and whose applications are in folder / "apps", until left.

    tables: those of lamplighter.toml that differ from the defaults; ports are free ones, nothing is synced to the disk,
    and a client may be late with its pongs, unless they say otherwise.
    """
    defaults: dict[str, dict[str, object]] = {
        "gateway": {"durability": "off", "clock_trusted": "always"},
        "http": {"port": 0},
        "websocket": {"port": 0, "ping_s": PING_S},
    }
    document = {name: {**defaults.get(name, {}), **tables.get(name, {})} for name in {**defaults, **tables}}
    settings, applications = msgspec.convert(document, Settings), load_applications(folder / "apps")
    shapes = shape_sources(settings.shacl, folder)
    configuration = Configuration(settings, folder, folder / "data", applications, shapes=shapes)
    stop = asyncio.Event()
    served: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()

    def ready(addresses: Addresses, recovery: Recovery) -> None:
        served.set_result(addresses)

    before = forks()
    gateway = asyncio.create_task(run_gateway(configuration, stop, ready, adapters=False))
    try:
        waited: list[asyncio.Future[Any]] = [gateway, served]
        await asyncio.wait(waited, timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if gateway.done():
            gateway.result()
        yield served.result()
    finally:
        stop.set()
        try:
            await gateway
        finally:
            await asyncio.wait_for(forks_gone(before), TIMEOUT_S)


@dataclass(frozen=True)
class Answer:
    """An HTTP answer. headers: names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def media_type(self) -> str:
        return self.headers["content-type"].partition(";")[0]


async def http(
    url: str,
    method: str = "GET",
    body: bytes | str | None = None,
    headers: Mapping[str, str] | None = None,
    **parameters: str | list[str],
) -> Answer:
    """One HTTP request with exactly these headers. parameters: go into the URL, underscores as hyphens but in
    request_id."""
    fields = {name if name == "request_id" else name.replace("_", "-"): value for name, value in parameters.items()}
    place = urllib.parse.urlsplit(url)
    target = place.path + ("?" + urllib.parse.urlencode(fields, doseq=True) if fields else "")
    target += ("&" if fields else "?") + place.query if place.query else ""
    data = body.encode() if isinstance(body, str) else body

    def ask() -> Answer:
        connection = http_client.HTTPConnection(place.hostname or "", place.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, target, data, dict(headers or {}))
            answer = connection.getresponse()
            told = {name.lower(): str(answer.getheader(name)) for name in answer.headers}
            return Answer(answer.status, told, answer.read())
        finally:
            connection.close()

    return await asyncio.get_running_loop().run_in_executor(_threads, ask)


async def update(addresses: Addresses, sparql: str, **parameters: str | list[str]) -> Answer:
    """POSTs an update as it is."""
    return await http(addresses.update, "POST", sparql, {"Content-Type": "application/sparql-update"}, **parameters)


async def updates_during(addresses: Addresses, work: asyncio.Task[Answer]) -> int:
    """Sends one update after another until the work is done. Returns how many were answered before."""
    done = 0
    while not work.done():
        assert (await update(addresses, f"INSERT DATA {{ <http://during> <http://r> {done} }}")).status == 200
        done += not work.done()
    return done


async def query(addresses: Addresses, sparql: str, accept: str = "", **parameters: str | list[str]) -> Answer:
    """POSTs a query as it is."""
    headers = {"Content-Type": "application/sparql-query"} | ({"Accept": accept} if accept else {})
    return await http(addresses.query, "POST", sparql, headers, **parameters)


async def rows(addresses: Addresses, sparql: str, **parameters: str | list[str]) -> list[dict[str, str]]:
    """The result of a SELECT query, values only."""
    answer = await query(addresses, sparql, "", **parameters)
    assert answer.status == 200, answer.body
    return values(answer.json)


async def health(addresses: Addresses) -> dict[str, Any]:
    return dict((await http(addresses.health)).json)


def values(document: Mapping[str, Any]) -> list[dict[str, str]]:
    """The rows of a SPARQL results document, values only."""
    return [{name: term["value"] for name, term in row.items()} for row in document["results"]["bindings"]]


async def tell(socket: ClientConnection, message: object) -> None:
    await socket.send(json.dumps(message))


async def hear(socket: ClientConnection) -> dict[str, Any]:
    """The next message."""
    async with asyncio.timeout(TIMEOUT_S):
        return dict(json.loads(await socket.recv()))


async def ask(socket: ClientConnection, message: object) -> dict[str, Any]:
    """The next message after this one was sent."""
    await tell(socket, message)
    return await hear(socket)


async def until(condition: Callable[[], Awaitable[bool]], what: str = "the condition") -> None:
    """Returns once the condition holds."""
    begun = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not await condition():
                waited_s = asyncio.get_running_loop().time() - begun
                await asyncio.sleep(min(max(0.01, waited_s / 10), 0.1))  # a look may cost a request and a fork
    except TimeoutError:
        raise AssertionError(f"{what} did not come true within {TIMEOUT_S} s") from None


async def until_it_is(check: Callable[[], Awaitable[Any]], expected: Any) -> None:
    """Returns once the check gives what is expected."""
    found: Any = None

    async def equal() -> bool:
        nonlocal found
        found = await check()
        return bool(found == expected)

    try:
        await until(equal)
    except AssertionError as error:
        raise AssertionError(f"{found!r} did not become {expected!r}") from error
