"""A process with the gateway's OSCORE contexts on real sockets: `python -m tests.support.oscore_gateway FOLDER PORT`.

It calls the device at PORT of 127.0.0.1 again and again (PUT /lamp), takes readings of devices (POST /readings),
and offers an observable resource that changes all the time (GET /state). Each reading that it takes is a line on
standard output. SIGTERM ends it cleanly.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import aiocoap
from aiocoap import CHANGED, CONTENT, NOT_FOUND, POST, PUT, Context, Message
from aiocoap.pipe import Pipe

from lamplighter.adapters.coap.contexts import Contexts
from lamplighter.adapters.coap.secured import RefusedRequest, SentRequest, received
from lamplighter.engine.errors import UpstreamError

NAME = "hall"


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


class Site:
    """What aiocoap asks of a site."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts

    async def needs_blockwise_assembly(self, request: Message) -> bool:
        return False

    async def render_to_pipe(self, pipe: Pipe) -> None:
        try:
            request = received(self._contexts, pipe.request)
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


async def command(context: Context, contexts: Contexts, uri: str, state: bytes) -> None:
    """One command, repeated with the Echo value of the device if it asks for this."""
    echo = None
    for _ in range(2):
        message = Message(code=PUT, uri_path=["lamp"], payload=state, echo=echo)
        sent = SentRequest(contexts.named(NAME), message)
        sent.outer.set_request_uri(uri, set_uri_host=False)
        with suppress(aiocoap.error.Error, UpstreamError):
            answer = sent.inner(await context.request(sent.outer, handle_blockwise=False).response)
            if not answer.opt.echo:
                return
            echo = answer.opt.echo


async def main(folder: Path, port: int) -> None:
    contexts = Contexts.load(folder)
    assert contexts.problems == {}, contexts.problems
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    site: Any = Site(contexts)
    server = await Context.create_server_context(site, bind=("127.0.0.1", 0), transports=["udp6"])
    client = await Context.create_client_context(transports=["udp6"])
    [interface] = server.request_interfaces
    own = interface.token_interface.message_interface.transport.get_extra_info("socket").getsockname()[1]
    say(f"port {own}")
    commanding = asyncio.ensure_future(_command_for_ever(client, contexts, port))
    ending = asyncio.ensure_future(ended.wait())
    await asyncio.wait([commanding, ending], return_when=asyncio.FIRST_COMPLETED)
    commanding.cancel()
    await asyncio.wait([commanding])
    contexts.close()
    os._exit(0)  # without waiting for answers


async def _command_for_ever(client: Context, contexts: Contexts, port: int) -> None:
    for number in count():
        await command(client, contexts, f"coap://127.0.0.1:{port}/", b"%d" % number)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
