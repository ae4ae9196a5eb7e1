"""`make bench`: measures the SUB Engine with the benchmark of Roffia 2016, and what the project adds to it.

    python -m benchmarks.sub_engine                 all parts
    python -m benchmarks.sub_engine lamp road       some of them
    python -m benchmarks.sub_engine --quick         small sizes, to see whether all works
    python -m benchmarks.sub_engine report          prints what is in build/bench once more

Each part runs in a process of its own, so that its memory is its own, and leaves build/bench/<part>.json.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import (
    bulk,
    coap,
    coap_server,
    durability,
    fan_out,
    history,
    http_round_trip,
    inference,
    mqtt,
    new_shapes,
    page,
    paths,
    priorities,
    profiles,
    queries,
    report,
    reproduction,
    scaling,
    scrape,
    sepa,
    starting,
    takeover,
    temporal,
    validation,
)
from benchmarks.effort import FULL, QUICK, Effort
from benchmarks.measuring import Progress, machine

ROOT = Path(__file__).resolve().parent.parent

Part = Callable[[Effort, Path, Progress], dict[str, Any]]

PARTS: dict[str, tuple[Part, str]] = {
    "lamp": (profiles.lamp, "LAMP: 310 updates of one lamp each, against the raw store"),
    "lamp-all": (profiles.lamp_all, "LAMP over all 9,500 lamps"),
    "road": (profiles.road, "ROAD with the road's IRI in the pattern"),
    "road-filter": (profiles.road_filter, "ROAD in the paper's text, with FILTER"),
    "timings": (profiles.timings, "T_UPDATE, T_LUTT, T_BOOSTER, T_NOTIFY and their curves"),
    "paper": (reproduction.reproduction, "Roffia 2016 to the letter: tables 9 to 15, figures 8 to 15, naive, parallel"),
    "latency": (scaling.latency, "first results of a seen shape, single updates that notify"),
    "all-hit": (scaling.all_hit, "every subscriber is notified of every update (appendix B.F)"),
    "fine": (scaling.fine, "1K to 1M fine-grain subscriptions"),
    "coarse": (scaling.coarse, "1K to 100K coarse-grain subscriptions"),
    "paths": (paths.paths, "1,000 class-aware subscriptions over a building, and paths over 10,000 edges"),
    "hot": (scaling.hot, "one lamp, 100,000 fresh values"),
    "durable": (durability.durable, "LAMP with the change log, synced in groups of 100"),
    "recovery": (durability.recovery, "a start from a snapshot and 20,000 updates behind it"),
    "fan-out": (fan_out.fan_out, "1,000 WebSocket subscribers, each notified of every update"),
    "idle-subscriptions": (fan_out.idle_subscriptions, "updates beside 10,000 subscriptions that they do not concern"),
    "temporal": (temporal.temporal, "100,000 pending comparisons with the clock: cost of an update, lateness"),
    "inference": (inference.inference, "inferred triples: readings, instances, edits of the ontology, memory"),
    "shacl": (validation.validation, "LAMP updates and readings that are checked against SHACL shapes"),
    "takeover": (takeover.takeover, "a query that the store takes over from its plan, and gives back"),
    "history": (history.history, "charts of a month from the index of past values"),
    "scrape": (scrape.scrape, "GET /metrics beside 10,000 subscriptions"),
    "http": (http_round_trip.http, "an update over HTTP beside 1,004 subscriptions"),
    "query": (queries.query, "queries of one row over HTTP beside 100 updates/s"),
    "new-shapes": (new_shapes.new_shapes, "updates whose shape nobody has seen, against the raw store"),
    "bulk": (bulk.bulk, "a document of 334K triples; requests of 100,000 quads"),
    "priorities": (priorities.priorities, "alarms beside a load that fills the queue, and beside one large update"),
    "stress": (sepa.stress, "SEPA's stress tests: 1010, 68 and 4030 events exactly"),
    "chat": (sepa.chat, "SEPA's chat: cost over the raw store, latency of notifications"),
    "mqtt": (mqtt.mqtt, "readings over mosquitto at QoS 1, to durable commit and notification"),
    "coap": (coap.coap, "500 observed CoAP sensors, and 1,000 actuators that are switched"),
    "coap-server": (
        coap_server.coap_server,
        "POSTs of 100 devices, 1,000 observers, 1,000 endpoints",
    ),
    "page": (page.page, "the web page with 1,000 streams at 100 readings/s, in Chromium"),
    "start": (starting.starting, "processor time until a gateway is ready, and of commands"),
    "wear": (durability.wear, "bytes written in a day of ten readings a second"),
}
IDLE = "idle"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make bench", description="Measures the SUB Engine.")
    parser.add_argument(
        "parts", nargs="*", metavar="part", help=f"of {', '.join([*PARTS, IDLE, 'report'])}; all when none is named"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see whether all works")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="folder for the results")
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = set(options.parts) - {*PARTS, IDLE, "report"}
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.in_this_process:
        for name in options.parts:
            _run_part(name, QUICK if options.quick else FULL, options.out)
        return 0
    if options.parts == ["report"]:
        names, failed = [name for name in PARTS if (options.out / f"{name}.json").exists()], []
    else:
        names = list(dict.fromkeys(options.parts)) or [*PARTS, IDLE]
        failed = _run_all(names, options)
    results = {
        name: json.loads((options.out / f"{name}.json").read_text())
        for name in names
        if name in PARTS and name not in failed
    }
    if results:
        about = next(iter(results.values()))["machine"]
        print("\n" + ", ".join(f"{name} {value}" for name, value in about.items()))
        if any(result["quick"] for result in results.values()):
            print("A quick run: small sizes and few repetitions, so the figures mean little.")
        print(f"\n{report.summary(results)}\n\nas JSON: {options.out}")
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return 1 if failed else 0


def _run_all(names: Sequence[str], options: argparse.Namespace) -> list[str]:
    """Runs each part in a process of its own; the names of those that failed."""
    failed = []
    for number, name in enumerate(names, start=1):
        about = "memory and CPU of an idle gateway" if name == IDLE else PARTS[name][1]
        print(f"[{number}/{len(names)}] {name}: {about}", flush=True)
        command = [sys.executable, "-m", "benchmarks.idle"]
        if name != IDLE:
            command = [sys.executable, "-m", "benchmarks.sub_engine", name, "--in-this-process", "--out"]
            command += [str(options.out.resolve()), *(["--quick"] if options.quick else [])]
        if subprocess.run(command, cwd=ROOT).returncode != 0:
            failed.append(name)
    return failed


def _run_part(name: str, effort: Effort, out: Path) -> None:
    started = time.monotonic()

    def progress(text: str) -> None:
        print(f"  {time.monotonic() - started:6.0f} s  {text}", flush=True)

    result = PARTS[name][0](effort, out, progress)
    result |= {"machine": machine(), "quick": effort is QUICK}
    (out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    if "unavailable" in result:
        progress(result["unavailable"])


if __name__ == "__main__":
    sys.exit(main())
