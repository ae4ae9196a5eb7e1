"""CoAP lamps are as the dataset wants them across kills of gateway, adapter and lamps."""

from __future__ import annotations

import secrets
import signal
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.support.coap_lamp import CoapLamp
from tests.support.coap_peers import libcoap_server
from tests.support.coap_processes import site
from tests.support.gateway_process import wait_for

pytestmark = pytest.mark.faults

BASE = "http://lamplighter.local/"
NAMES = "PREFIX gateway: <http://lamplighter.example/ns/gateway#> "
LAMPS, KILLS = 4, 12
RULE = """[[command]]
actuator = "lamp/{name}"
resource = "{uri}"
"""


def test_lamps_are_as_wanted_across_kills_of_all_sides(tmp_path: Path) -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    random, kills, wanted, changes = Random(seed), Counter[str](), dict[str, str](), 0
    with libcoap_server() as server, CoapLamp() as lamp:
        rules = [RULE.format(name=n, uri=server.uri(f"lamp/{n}")) + "reassert_s = 1\n" for n in range(LAMPS)]
        rules.append(RULE.format(name="post", uri=f"coap://127.0.0.1:{lamp.port}/lamp") + 'method = "POST"\n')
        with site(tmp_path, "\n".join(rules)) as (gateway, adapter):

            def change() -> None:
                nonlocal changes
                changes += 1
                name = random.choice([*map(str, range(LAMPS)), "post"])
                wanted[name] = f"ON {changes}"
                node = f"<{BASE}lamp/{name}>"
                gateway.update(
                    f"{NAMES} DELETE {{ {node} gateway:desiredState ?was }} "
                    f"INSERT {{ {node} gateway:desiredState '{wanted[name]}' }} "
                    f"WHERE {{ OPTIONAL {{ {node} gateway:desiredState ?was }} }}"
                )

            while kills.total() < KILLS:
                for _ in range(random.randrange(1, 8)):
                    change()
                time.sleep(random.uniform(0, 0.5))
                victim = random.choice(("gateway", "adapter", "lamps"))
                kills[victim] += 1
                if victim == "gateway":
                    gateway.end(signal.SIGKILL)
                    gateway.start()
                elif victim == "adapter":
                    adapter.end(signal.SIGKILL)
                    change()
                    adapter.start()
                else:
                    server.stop()
                    change()
                    server.start()
            print(kills)
            for name, state in wanted.items():
                if name == "post":
                    wait_for(lambda state=state: lamp.state == state, what=f"{state} of the lamp for POST")  # type: ignore[misc]
                else:
                    path = f"lamp/{name}"
                    wait_for(lambda path=path, state=state: server.get(path) == state, what=f"{state} of {path}")  # type: ignore[misc]
            assert lamp.doubled == []
