"""A process with the endpoints and the OSCORE contexts of the adapter.

`python -m tests.support.oscore_gateway FOLDER PORT`

It calls the device at PORT of 127.0.0.1 again and again (PUT /lamp) and observes it (GET /temperature). As a server, it
takes readings of devices (POST /readings), and has an observable resource that changes all the time (GET /state).
Readings and notifications that it takes are lines on standard output. SIGTERM ends it cleanly.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from aiocoap import CHANGED, CONTENT, NOT_FOUND, POST, Message
from aiocoap.pipe import Pipe

from lamplighter.adapters.coap.contexts import Contexts
from lamplighter.adapters.coap.endpoint import Endpoint, EndpointCounters
from lamplighter.adapters.coap.exchanges import Exchanges
from lamplighter.adapters.coap.observations import Observation
from lamplighter.adapters.coap.protection import DeviceProtection
from lamplighter.adapters.coap.secured import RefusedRequest, received
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.networks import Networks
from lamplighter.adapters.resources.exchange import DeviceRequest, ObservationCounters, ObservedResource
from lamplighter.engine.errors import UpstreamError

SETTINGS = CoapSettings(retransmissions_max=10, answer_timeout_s=120)


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


@dataclass
class Place:
    host: str = "127.0.0.1"
    port: int = 0
    requests_max: int = 100


class Site:
    """The server."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts

    async def render_to_pipe(self, pipe: Pipe) -> None:
        try:
            request = received(self._contexts.by_kid, pipe.request)
        except RefusedRequest as refused:
            pipe.add_response(refused.answer, is_last=True)
            return
        inner = request.inner
        if inner.code is POST:
            say(f"took {inner.payload.decode()}")
            pipe.add_response(request.outer(Message(code=CHANGED)), is_last=True)
        elif inner.opt.observe == 0:
            for number in count():
                told = Message(code=CONTENT, payload=b"%d" % number, observe=number)
                pipe.add_response(request.outer(told), is_last=False)
                await asyncio.sleep(0.01)
        else:
            pipe.add_response(request.outer(Message(code=NOT_FOUND)), is_last=True)


class Caller:
    """The client."""

    def __init__(self, endpoint: Endpoint, contexts: Contexts, port: int) -> None:
        networks = Networks(["127.0.0.0/8"], "coap.networks")
        protection = DeviceProtection(contexts, {}, Networks([], "coap.plain"))
        self._exchanges = Exchanges(endpoint, networks, SETTINGS, seals=protection.seal)
        self._uri = f"coap://127.0.0.1:{port}/lamp"

    async def command_for_ever(self) -> None:
        for number in count():
            with suppress(UpstreamError):
                await self._exchanges.request(DeviceRequest(self._uri, "PUT", b"%d" % number, 0))

    async def observe(self) -> None:
        """Says what the device tells."""
        resource = ObservedResource(self._uri.replace("lamp", "temperature"))
        observation = Observation(self._exchanges, resource, ObservationCounters())
        await observation.run(lambda state: say(f"saw {state.body.decode()}"))


async def main(folder: Path, port: int) -> None:
    contexts = await asyncio.to_thread(Contexts.load, folder)
    assert contexts.problems == {}, contexts.problems
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    counters = EndpointCounters()
    server = await Endpoint.server(Place(), Site(contexts), counters)
    client = await Endpoint.client(SETTINGS, counters)
    caller = Caller(client, contexts, port)
    say(f"calls {client.port}")
    say(f"port {server.port}")
    working = [asyncio.ensure_future(work) for work in (ended.wait(), caller.command_for_ever(), caller.observe())]
    done, others = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    await asyncio.wait(working)
    await client.close()
    await server.close()
    await asyncio.to_thread(contexts.close)
    for task in done:
        task.result()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
