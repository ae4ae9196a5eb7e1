"""A large document into the engine, against the store alone; large requests to a gateway, by how long its loop is held.

The paper's knowledge base is loaded with all subscriptions of its benchmark. A gateway gets an update, a graph write, a
CLEAR and a DROP, each of 100,000 quads.
"""

import resource
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks import street_lighting as street
from benchmarks.effort import Effort
from benchmarks.gateway_process import gateway_process
from benchmarks.http_round_trip import KeptAlive
from benchmarks.measuring import Progress, RawSide, cost_of, target
from lamplighter.engine import Engine

_NTRIPLES = "application/n-triples"


def bulk(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    result: dict[str, Any] = {"load": _load(effort, progress), "requests": _requests(effort, progress)}
    load, requests = result["load"], result["requests"]
    worst = max(requests, key=lambda name: requests[name]["held ms"])
    result["note"] = (
        f"Engine.load of {load['quads']:,} triples with {load['subscriptions']:,} subscriptions: "
        f"{load['engine s']:.2f} s of CPU, the store alone {load['store s']:.2f} s; {load['peak MB']:.0f} MB resident "
        f"at most, the document included. Requests of {effort.bulk_quads:,} quads hold the gateway's loop at most for "
        + ", ".join(f"{one['held ms']:.0f} ms ({name})" for name, one in requests.items())
        + " of CPU at a time."
    )
    result["targets"] = [
        target("Engine.load, CPU against the store alone", load["engine s"] / load["store s"], 1.5),
        target("Engine.load, resident memory at most", load["peak MB"], 300, " MB"),
        target(f"request of {effort.bulk_quads:,} quads, longest pause", requests[worst]["held ms"], 50, " ms"),
    ]
    return result


def _load(effort: Effort, progress: Progress) -> dict[str, float]:
    document = street.document(bare=effort.bare)
    with Engine() as engine:
        entries = street.subscription_profile()
        for entry in entries:
            engine.subscribe(entry.text)

        def load() -> None:
            engine.load(document, _NTRIPLES)
            engine.store.flush()

        spent = cost_of(load)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6  # before the store alone needs memory
        quads = engine.quad_count
    progress(f"loaded {quads:,} triples")
    raw = cost_of(lambda: RawSide(document))
    return {
        "quads": quads,
        "subscriptions": len(entries),
        "engine s": spent.cpu,
        "store s": raw.cpu,
        "peak MB": peak,
    }


def _requests(effort: Effort, progress: Progress) -> dict[str, dict[str, float]]:
    triples = [f"<http://lamplighter.example/bulk/{number}> <urn:p> {number} ." for number in range(effort.bulk_quads)]
    update = "INSERT DATA {\n" + "\n".join(triples) + "\n}"
    turtle = "\n".join(triples)
    found = {}
    for name, path, media_type, body in (
        ("INSERT DATA", "/update", "application/sparql-update", update),
        ("CLEAR", "/update", "application/sparql-update", "CLEAR DEFAULT"),
        ("graph write", "/graphs?graph=http://lamplighter.example/bulk", "text/turtle", turtle),
        ("DROP", "/update", "application/sparql-update", "DROP GRAPH <http://lamplighter.example/bulk>"),
    ):
        with gateway_process() as gateway, closing(KeptAlive(gateway.http)) as client:
            if name == "CLEAR":
                client.post("/update", media_type, update.encode())
            elif name == "DROP":
                client.post("/graphs?graph=http://lamplighter.example/bulk", "text/turtle", turtle.encode())
            seconds = client.post(path, media_type, body.encode())
            held = gateway.figures()["engine"]["loop_held_ms"]
        found[name] = {"s": seconds, "held ms": held["processor_max"], "work": held["processor_max_work"]}
        progress(f"{name}: {seconds:.1f} s, held for {held['processor_max']:.0f} ms by {held['processor_max_work']}")
    return found
