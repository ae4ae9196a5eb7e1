"""A CoAP sensor as a process of its own, made with aiocoap's server: `python -m tests.support.coap_sensor PORT FIRST`.

Its resource /count is observable, with Max-Age 1. It counts up from FIRST each 50 ms.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiocoap
import aiocoap.resource

from tests.support.places import ROOT


class _Count(aiocoap.resource.ObservableResource):  # type: ignore[misc]  # the library ships no types
    def __init__(self, first: int) -> None:
        super().__init__()
        self.value = first

    async def count(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            self.value += 1
            self.updated_state()

    async def render_get(self, request: Any) -> aiocoap.Message:
        return aiocoap.Message(payload=b"%d" % self.value, content_format=0, max_age=1)


async def _serve(port: int, first: int) -> None:
    site, count = aiocoap.resource.Site(), _Count(first)
    site.add_resource(["count"], count)
    await aiocoap.Context.create_server_context(site, bind=("127.0.0.1", port), transports=["simplesocketserver"])
    print("ready", flush=True)
    await count.count()


@contextmanager
def sensor_process(port: int, first: int) -> Iterator[subprocess.Popen[bytes]]:
    """A running sensor; killed at the end."""
    command = [sys.executable, "-m", "tests.support.coap_sensor", str(port), str(first)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
