"""Real gateways: `lamplighter run` as processes, with readings over HTTP.

The lake is checked against the readings sent to them and the datasets that they return.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lamplighter.demo.fleet.store import Store
from lamplighter.engine.change_log import segment_name
from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.terms import XSD, Quad, iri, literal, term_from_json
from lamplighter.ontology import vocabulary as v

_SENSORS = ("door", "hall", "yard")
_WAIT_S = 60.0
_EVERYTHING = "SELECT ?s ?p ?o ?g { { ?s ?p ?o } UNION { GRAPH ?g { ?s ?p ?o } } }"


@dataclass
class RealGateway:
    """readings: by stream, as sent; dataset: the final dataset as sorted N-Quads lines."""

    folder: Path
    model: str
    process: subprocess.Popen[str]
    urls: dict[str, str]
    readings: dict[str, list[float]] = field(default_factory=dict)
    dataset: list[str] = field(default_factory=list)
    sequence: int = 0

    @property
    def name(self) -> str:
        return (self.folder / "data" / "identity").read_text().strip()

    def describe(self) -> None:
        """Sends the descriptions of the sensors."""
        for sensor in _SENSORS:
            stream, observation = _iri("stream", sensor), _iri("observation", sensor)
            whose = observation if self.model == "latest" else stream
            quads = [
                Quad(stream, iri(v.RDF_TYPE), iri(v.STREAM)),
                Quad(whose, iri(v.MADE_BY_SENSOR), _iri("sensor", sensor)),
                Quad(whose, iri(v.OBSERVED_PROPERTY), iri(v.TEMPERATURE)),
                Quad(whose, iri(v.HAS_FEATURE_OF_INTEREST), _iri("place", sensor)),
                Quad(stream, iri(v.HAS_UNIT), iri(v.UNIT + "DEG_C")),
                Quad(stream, iri(v.RDFS_LABEL), literal(f"temperature in the {sensor}")),
            ]
            if self.model == "latest":
                quads.append(Quad(stream, iri(v.LIVE_OBSERVATION), observation))
            self._update("INSERT DATA { " + " ".join(quad.to_nquads() for quad in quads) + " }")

    def read(self, number: int, chance: random.Random) -> None:
        """Sends one reading of one of the sensors."""
        sensor = _SENSORS[number % len(_SENSORS)]
        degrees = round(20 + chance.gauss(0, 2), 1)
        value = literal(f"{degrees:g}", datatype=f"{XSD}decimal")
        time_ = literal(datetime.now(UTC).isoformat().replace("+00:00", "Z"), datatype=f"{XSD}dateTime")
        observation = _iri("observation", sensor)
        if self.model == "latest":
            self._update(
                f"DELETE {{ {observation} <{v.HAS_SIMPLE_RESULT}> ?v . {observation} <{v.RESULT_TIME}> ?t }} "
                f"INSERT {{ {observation} <{v.HAS_SIMPLE_RESULT}> {value} . {observation} <{v.RESULT_TIME}> {time_} }} "
                f"WHERE {{ OPTIONAL {{ {observation} <{v.HAS_SIMPLE_RESULT}> ?v ; <{v.RESULT_TIME}> ?t }} }}"
            )
        else:
            own, graph = _iri("observation", f"{sensor}/{number}"), _iri("reading", f"{sensor}/{number}")
            said = [
                (own, v.MADE_BY_SENSOR, _iri("sensor", sensor)),
                (own, v.OBSERVED_PROPERTY, iri(v.TEMPERATURE)),
                (own, v.HAS_FEATURE_OF_INTEREST, _iri("place", sensor)),
                (own, v.HAS_SIMPLE_RESULT, value),
                (own, v.RESULT_TIME, time_),
                (_iri("stream", sensor), v.LIVE_OBSERVATION, own),
            ]
            text = " ".join(f"{s} <{p}> {o} ." for s, p, o in said)
            self._update(f"INSERT DATA {{ GRAPH {graph} {{ {text} }} }}")
        self.readings.setdefault(_iri("stream", sensor)[1:-1], []).append(degrees)

    def finish(self) -> None:
        """Reads the dataset, waits until all segments are sealed, and stops the process."""
        answer = json.loads(self._post("query", "application/sparql-query", _EVERYTHING))
        for binding in answer["results"]["bindings"]:
            terms = {name: term_from_json(term) for name, term in binding.items()}
            self.dataset.append(Quad(terms["s"], terms["p"], terms["o"], terms.get("g")).to_nquads())
        self.dataset.sort()
        end = time.monotonic() + _WAIT_S
        while self._sealed() < self.sequence:
            if time.monotonic() > end:
                raise UpstreamError(f"{self.folder}: the gateway has not sealed record {self.sequence}")
            time.sleep(0.2)
        self.process.terminate()
        self.process.wait()

    def ship(self) -> str:
        """Runs the shipper once, as its own process. Returns its output."""
        command = [
            sys.executable,
            "-m",
            "lamplighter.cloud_sync",
            "run",
            "--once",
            "--config",
            str(self.folder / "lamplighter.toml"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UpstreamError(f"the shipper of {self.folder} failed: {done.stderr.strip()}")
        return done.stdout.strip()

    def _sealed(self) -> int:
        names = [segment_name(path.stem + ".ndjson.zst") for path in (self.folder / "data" / "log").glob("*.json")]
        return max((name.last for name in names if name is not None and name.last is not None), default=0)

    def _update(self, text: str) -> None:
        self.sequence = json.loads(self._post("update", "application/sparql-update", text))["sequence"]

    def _post(self, to: str, kind: str, text: str) -> bytes:
        headers = {"Content-Type": kind, "Accept": "application/sparql-results+json, application/json"}
        request = urllib.request.Request(self.urls[to], text.encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                found: bytes = answer.read()
        except urllib.error.HTTPError as error:
            raise UpstreamError(f"{self.urls[to]} refused: {error.read().decode(errors='replace')}") from error
        except OSError as error:
            raise UpstreamError(f"{self.urls[to]}: {error}") from error
        return found


def _iri(kind: str, name: str) -> str:
    return iri(f"http://lamplighter.local/{kind}/{name}")


@contextlib.contextmanager
def running(folder: Path, store: Store, models: tuple[str, ...]) -> Iterator[list[RealGateway]]:
    """Runs gateways on free ports, one per observation model, that ship to the store."""
    with contextlib.ExitStack() as ending:
        started = []
        for number, model in enumerate(models, 1):
            home = folder / f"{number}"
            home.mkdir(parents=True)
            config: dict[str, dict[str, Any]] = {
                "http": {"port": 0},
                "websocket": {"port": 0},
                # The default would make the demo wait for an hour.
                "log": {"segment_s_max": 2},
                # Their readings are of today, unlike the simulated ones. One time axis cannot show both.
                "gateway": {"clock_trusted": "never"},
                "sync": {"destination": store.url, "options_file": str(store.options_file)},
            }
            lines = []
            for table, values in config.items():
                lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
            (home / "lamplighter.toml").write_text("\n".join(lines) + "\n")
            with (home / "gateway.log").open("w") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "lamplighter.gateway", "run", "--config", str(home / "lamplighter.toml")],
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            ending.callback(process.communicate)
            ending.callback(process.terminate)
            started.append((home, model, process))
        yield [RealGateway(home, model, process, _urls(process, home)) for home, model, process in started]


def _urls(process: subprocess.Popen[str], home: Path) -> dict[str, str]:
    """The addresses that the gateway prints when it is ready."""
    assert process.stdout is not None
    urls: dict[str, str] = {}
    while "health" not in urls:
        line = process.stdout.readline()
        if not line:
            raise UpstreamError(f"the gateway did not start; see {home / 'gateway.log'}")
        name, _, url = line.strip().partition(" ")
        if url.strip().startswith(("http", "ws")):
            urls[name] = url.strip()
    return urls
