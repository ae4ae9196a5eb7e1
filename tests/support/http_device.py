"""A device with a web server, on a port of loopback, in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import Response

from tests.support.brokers import free_port
from tests.support.event_loops import TIMEOUT_S, until

Answer = Callable[[Request], Response]


class WebDevice:
    """answers: path -> what it answers; asked: method, path, body and headers of each request, in order."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, str, bytes, dict[str, str]]] = []
        self.most = self._now = 0
        """Requests at the same time, and the most of them."""

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def has(self, path: str, body: bytes | str, media: str = "application/json", status: int = 200) -> None:
        """Answers GET with a body, and PUT and POST by taking the new one."""
        state = [body.encode() if isinstance(body, str) else body]

        def answer(request: Request) -> Response:
            if request.method != "GET":
                state[0] = request.state.body
                return Response(status_code=204)
            return Response(state[0], status, media_type=None, headers={"content-type": media})

        self.answers[path] = answer

    def requests(self, method: str, path: str) -> list[bytes]:
        """The bodies of the requests."""
        return [body for asked, at, body, _ in self.asked if (asked, at) == (method, path)]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            request.state.body = await request.body()
            headers = dict(request.headers)
            self.asked.append((request.method, request.url.path, request.state.body, headers))
            found = self.answers.get(request.url.path)
            answer = Response("unknown", 404, media_type="text/plain") if found is None else found(request)
            await answer(scope, receive, send)
        finally:
            self._now -= 1


@asynccontextmanager
async def served(device: WebDevice) -> AsyncIterator[WebDevice]:
    """Serves it until left. Then the port is free, and connections end."""
    config = uvicorn.Config(
        device, host="127.0.0.1", port=device.port, log_level="error", lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    running = asyncio.create_task(server._serve())
    await until(lambda: server.started)
    try:
        yield device
    finally:
        server.should_exit = server.force_exit = True
        await running


@contextmanager
def web_device() -> Iterator[WebDevice]:
    """A device that is served by a thread, for tests without a loop. It gives its answers there."""
    device = WebDevice(free_port())
    started, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with served(device):
            started.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert started.wait(TIMEOUT_S)
        yield device
    finally:
        done.set()
        thread.join()
