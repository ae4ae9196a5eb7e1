"""`GET /metrics` of a gateway with many subscriptions."""

import http.client
import statistics
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.effort import Effort
from benchmarks.gateway_process import gateway_process
from benchmarks.measuring import Progress, target
from benchmarks.sockets import Sockets

_WARMING = 3


def scrape(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """Time and processor time of a scrape, beside subscriptions over `idle_sockets` sockets."""
    sockets, each = effort.idle_sockets, effort.idle_each
    elapsed, cpu = [], []
    with gateway_process() as gateway, closing(Sockets(gateway.websocket, sockets)) as subscribers:
        for number, socket in enumerate(subscribers.all):
            for place in range(each):
                subject = f"<http://bench.example/lamp/{number}/{place}>"
                answer = socket.ask({"subscribe": {"sparql": f"SELECT ?v {{ {subject} <http://bench.example/p> ?v }}"}})
                assert "notification" in answer, answer
        progress(f"{sockets * each:,} subscriptions")
        connection = http.client.HTTPConnection(*gateway.http)
        for turn in range(effort.scrapes + _WARMING):
            before, begun = gateway.cpu_s(), time.perf_counter()
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            size = len(answer.read())
            assert answer.status == 200
            if turn >= _WARMING:
                elapsed.append((time.perf_counter() - begun) * 1000)
                cpu.append((gateway.cpu_s() - before) * 1000)
        connection.close()
    median, worst = statistics.median(elapsed), max(elapsed)
    progress(
        f"{median:.1f} ms, {worst:.1f} ms at most, {statistics.median(cpu):.1f} ms of processor time, {size:,} bytes"
    )
    return {
        "subscriptions": sockets * each,
        "bytes": size,
        "median ms": median,
        "worst ms": worst,
        "processor ms": statistics.median(cpu),
        "targets": [target(f"GET /metrics with {sockets * each:,} subscriptions", median, 50, "ms")],
    }
