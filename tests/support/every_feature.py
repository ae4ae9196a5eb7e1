"""A gateway in which every feature is used that keeps something, and what has to hold afterwards in any version.

It speaks to a machine by shell commands only, so that one list serves a folder of this machine and a container.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

from lamplighter.ontology.vocabulary import ADOPTION
from tests.support.announcements import announcements

RECEIVER_PORT, COAP_PORT = 8188, 5683
SETTINGS = """
[webhooks]
enabled = true
networks = ["127.0.0.0/8"]
ports = []
backoff_s_max = 1
[ldn]
enabled = true
networks = ["127.0.0.0/8"]
ports = []
backoff_s_max = 1
[ngsild]
enabled = true
[ngsild.subscriptions]
enabled = true
networks = ["127.0.0.0/8"]
ports = []
backoff_s_max = 1
[inference]
graphs = ["urn:g:things"]
[shacl]
shapes = ["shapes/*.ttl"]
[sensorthings]
enabled = true
mqtt = true
[wot]
enabled = true
[changes]
enabled = true
[store]
path = "store"
[log]
snapshot_records = 50
[coap]
networks = ["127.0.0.0/8"]
plain = ["127.0.0.0/8"]
[coap.server]
host = "127.0.0.1"
port = %d
echo = "large"
"""
SHAPES = """
@prefix sh: <http://www.w3.org/ns/shacl#> .
<urn:e:Shape> a sh:NodeShape ; sh:targetClass <urn:e:Lamp> ; sh:property [ sh:path <urn:e:level> ; sh:minCount 1 ] .
"""
APPLICATION = {
    "host": "localhost",
    "sparql11protocol": {
        "protocol": "http",
        "port": 8000,
        "query": {"path": "/query", "method": "POST", "format": "JSON"},
        "update": {"path": "/update", "method": "POST", "format": "JSON"},
    },
    "sparql11seprotocol": {"protocol": "ws", "availableProtocols": {"ws": {"port": 9000, "path": "/subscribe"}}},
    "namespaces": {},
    "queries": {"VALUE": {"sparql": "SELECT ?v WHERE { <urn:e:round> <urn:e:is> ?v }"}},
    "updates": {
        "COPY": {
            "sparql": "INSERT { <urn:e:copy> <urn:e:is> ?v } WHERE { <urn:e:round> <urn:e:is> ?v }",
            "forcedBindings": {"v": {"type": "literal", "datatype": "xsd:integer", "value": "0"}},
        }
    },
    "extended": {"lamplighter": {"aggregators": {"copy": {"query": "VALUE", "added": "COPY"}}}},
}
# Stored while the gateway runs: it notes each round at once, and once more after 30 hours.
_NOTE = {
    "sparql": "INSERT { <urn:e:stored> <urn:e:is> ?v } WHERE {}",
    "forcedBindings": {"v": {"type": "literal", "datatype": "xsd:integer", "value": "0"}},
}
STORED = {
    "queries": APPLICATION["queries"],
    "updates": {"NOTE": _NOTE, "LATER": {**_NOTE, "delay": "PT30H"}},
    "extended": {
        "lamplighter": {
            "aggregators": {
                "note": {"query": "VALUE", "added": "NOTE"},
                "later": {"query": "VALUE", "added": "LATER"},
            }
        }
    },
}
PORCH = {
    "name": "porch-light",
    "values": {"light": "porch", "topic": "porch/pir", "command-topic": "porch/lamp/set"},
    "put": True,
    "replace": True,
}
# Confirms webhooks, advertises an inbox, and writes a line per notification.
RECEIVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

class Receiver(BaseHTTPRequestHandler):
    def do_GET(self):
        asked = parse_qs(urlsplit(self.path).query)
        self.answer(200, asked.get("hub.challenge", [""])[0])

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open(sys.argv[2], "a") as out:
            print(json.dumps([self.path, body]), file=out, flush=True)
        self.answer(201)

    def answer(self, status, text=""):
        self.send_response(status)
        self.send_header("Link", '</inbox>; rel="http://www.w3.org/ns/ldp#inbox"')
        self.send_header("Location", "/inbox/1")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
"""
# Takes up a subscription where it was left, or makes it, and leaves it again.
KEEPING = """
import json, pathlib, sys
from websockets.sync.client import unix_connect
place = pathlib.Path(sys.argv[2])
known = json.loads(place.read_text()) if place.exists() else {}
rows, told = known.pop("rows", []), {}
with unix_connect(sys.argv[1], "ws://localhost/subscribe", compression=None) as socket:
    socket.send(json.dumps({"subscribe": {"sparql": "SELECT ?v { <urn:e:round> <urn:e:is> ?v }", "alias": "kept",
                                          "resume": {"keep": "P1D", **known}}}))
    told = json.loads(socket.recv(60))
    wanted = told["resumed"]["sequence"] if "resumed" in told else 0
    notification = None if "resumed" in told else told["notification"]
    sequence = known.get("sequence", -1)
    while sequence < wanted:
        notification = notification or json.loads(socket.recv(60))["notification"]
        for row in notification.get("addedResults", {}).get("results", {}).get("bindings", []):
            rows.append(row["v"]["value"])
        for row in notification.get("removedResults", {}).get("results", {}).get("bindings", []):
            rows.remove(row["v"]["value"])
        sequence, spuid, notification = notification["sequence"], notification["spuid"], None
        known = {"spuid": spuid, "sequence": sequence}
place.write_text(json.dumps({**known, "rows": rows}))
print(json.dumps({"resumed": "resumed" in told, "rows": rows}))
"""
PUBLISHING = """
import json, sys
from paho.mqtt import publish
names = ("topic", "payload", "retain", "qos")
messages = [dict(zip(names, (*one, 1))) for one in json.load(sys.stdin)]
publish.multiple(messages, "127.0.0.1", int(sys.argv[1]))
"""
REGISTERING = """
import asyncio, sys
from aiocoap import POST, Context, Message

async def register():
    context = await Context.create_client_context()
    uri = f"coap://127.0.0.1:{sys.argv[1]}/rd?ep=porch&lt=90000&base=coap://127.0.0.1:5999"
    message = Message(code=POST, uri=uri, content_format=40, payload=b'</t>;rt="temperature";if="core.s";u="Cel"')
    answer = await asyncio.wait_for(context.request(message).response, 60)
    print(answer.code)
    await context.shutdown()

asyncio.run(register())
"""
ROOM = "urn:ngsi-ld:Room:1"
_FACTS = {
    "round": "<urn:e:round> <urn:e:is> ?v",
    "all": "<urn:e:all> <urn:e:is> ?v",
    "copied": "<urn:e:copy> <urn:e:is> ?v",
    "stored": "<urn:e:stored> <urn:e:is> ?v",
    "inferred": "GRAPH ?g { ?v a <urn:e:D> }",
    "late": "<urn:e:late> <urn:e:is> ?v",
    "noted": "GRAPH ?g { ?n <https://www.w3.org/ns/activitystreams#actor> ?v }",
    "adopted": f'?v <{ADOPTION}> "adopted"',
}


class Shell(Protocol):
    """A machine."""

    def __call__(self, command: str) -> str: ...

    def put(self, path: str, text: str) -> None: ...

    def wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None: ...


@dataclass
class EveryFeature:
    """http, websocket: Unix sockets of the gateway; https, coap: its ports; files: a folder of the tests; python: an
    interpreter with the gateway's dependencies; broker, receiver: ports of those that run already."""

    machine: Shell
    http: str
    websocket: str
    https: int
    files: str
    python: str
    broker: int = 1883
    coap: int = COAP_PORT
    receiver: int = RECEIVER_PORT
    round: int = 0
    _secrets: dict[str, str] = field(default_factory=dict)
    _tokens: list[str] = field(default_factory=list)
    _ended: list[str] = field(default_factory=list)
    _adopted: list[str] = field(default_factory=list)
    _stored: list[str] = field(default_factory=list)
    _kept: bool = False

    # --- asking ---

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> str:
        """What the gateway answers; it has to go well."""
        answer, status = self.status(method, path, body, kind)
        assert status < 300, (method, path, status, answer)
        return answer

    def status(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[str, int]:
        text = body if isinstance(body, str) else json.dumps(body)
        self.machine.put(f"{self.files}/body", text)
        sent = "" if body is None else f"-H 'Content-Type: {kind}' --data-binary @{self.files}/body"
        told = self.machine(
            f"curl -sS --max-time 60 --unix-socket {self.http} -X {method} {sent} -w '\\n%{{http_code}}' "
            f"'http://localhost{path}'"
        )
        answer, _, status = told.rpartition("\n")
        return answer, int(status)

    def update(self, text: str) -> None:
        self.ask("POST", "/update", text, "application/sparql-update")

    def facts(self) -> dict[str, list[str]]:
        """The values of `_FACTS`, sorted."""
        parts = (f'{{ {pattern} BIND("{name}" AS ?name) }}' for name, pattern in _FACTS.items())
        text = self.ask("POST", "/query", f"SELECT ?name ?v {{ {' UNION '.join(parts)} }}", "application/sparql-query")
        found: dict[str, list[str]] = {name: [] for name in _FACTS}
        for row in json.loads(text)["results"]["bindings"]:
            found[row["name"]["value"]].append(row["v"]["value"])
        return {name: sorted(values) for name, values in found.items()}

    def holds(self, condition: Callable[[], bool], what: str) -> None:
        self.machine.wait(condition, 60, what)

    def _token(self, client: str) -> str:
        given = base64.b64encode(f"{client}:{self._secrets[client]}".encode()).decode()
        told = self.machine(
            f"curl -sS --insecure -X POST -H 'Authorization: Basic {given}' -H 'Content-Type: application/json' "
            f"-H 'Accept: application/json' https://localhost:{self.https}/oauth/token"
        )
        return str(json.loads(told)["access_token"])

    def _code(self, token: str, *options: str) -> int:
        return int(
            self.machine(
                f"curl -sS --insecure -o {self.files}/answer -w '%{{http_code}}' -H 'Authorization: Bearer {token}' "
                f"{' '.join(options)} 'https://localhost:{self.https}/secure/query?query=ASK%20%7B%7D'"
            )
        )

    def _received(self) -> Iterator[tuple[str, Any]]:
        for line in self.machine(f"cat {self.files}/received").splitlines():
            path, body = json.loads(line)
            yield path, body

    # --- features ---

    def begin(self) -> None:
        """Uses everything once."""
        for name, text in (("keeping", KEEPING), ("publishing", PUBLISHING), ("registering", REGISTERING)):
            self.machine.put(f"{self.files}/{name}.py", text)
        self.update("INSERT DATA { <urn:e:round> <urn:e:is> 0 }")
        # Inference.
        subclass = "http://www.w3.org/2000/01/rdf-schema#subClassOf"
        self.update(f"INSERT DATA {{ GRAPH <urn:g:things> {{ <urn:e:C> <{subclass}> <urn:e:D> }} }}")
        # Interfaces.
        hook = f"http://127.0.0.1:{self.receiver}"
        query = "SELECT ?v { <urn:e:round> <urn:e:is> ?v }"
        self.ask("POST", "/webhooks", {"query": query, "callback": f"{hook}/hook"})
        self.ask("POST", "/ldn", {"query": query, "target": f"{hook}/"})
        note = {
            "@context": "https://www.w3.org/ns/activitystreams",
            "id": "",
            "type": "Announce",
            "actor": "urn:e:anna",
        }
        self.ask("POST", "/inbox/", note, "application/ld+json")
        room = {"id": ROOM, "type": "Room", "temperature": {"type": "Property", "value": 0}}
        self.ask("POST", "/ngsi-ld/v1/entities", room)
        endpoint = {"uri": f"{hook}/room", "receiverInfo": [{"key": "Authorization", "value": "Bearer 7f3c"}]}
        self.ask(
            "POST",
            "/ngsi-ld/v1/subscriptions",
            {
                "id": "urn:ngsi-ld:Subscription:1",
                "type": "Subscription",
                "entities": [{"type": "Room"}],
                "notification": {"format": "concise", "endpoint": endpoint},
            },
        )
        self.ask("POST", "/things", self._description(), "application/td+json")
        # Devices.
        found = [
            [topic, payload.decode(), True]
            for name in ("homeassistant", "shelly", "tasmota", "zigbee2mqtt")
            for topic, payload in announcements(name)
        ]
        self._publish(found)
        self.machine(f"{self.python} {self.files}/registering.py {self.coap}")
        self.holds(lambda: len(self.devices()) > 10, "the devices")
        self.holds(self._adopt_all, "the adoption")
        self._adopted = self.facts()["adopted"]

    def _adopt_all(self) -> bool:
        """False for a device that announced more of itself meanwhile."""
        try:
            self.machine("lamplighter devices adopt --all")
        except AssertionError as error:
            if "it changed meanwhile" not in str(error):
                raise
            return False
        return True

    def use(self) -> None:
        """Changes everything once more."""
        self.round = number = self.round + 1
        if self._stores_applications():  # the same again changes nothing
            self.ask("PUT", "/applications/stored", STORED)
            self.ask("POST", "/templates/motion-light", PORCH)
            self._stored.append(str(number))
        self.update(
            "DELETE { <urn:e:round> <urn:e:is> ?old } "
            f"INSERT {{ <urn:e:round> <urn:e:is> {number} . <urn:e:all> <urn:e:is> {number} "
            f"GRAPH <urn:g:things> {{ <urn:e:c{number}> a <urn:e:C> }} }} WHERE {{ <urn:e:round> <urn:e:is> ?old }}"
        )
        # Two clients, one of which goes; a token of each; one of them is logged out.
        for name in (f"client-{number}", f"gone-{number}"):
            wanted = {"name": name, "how": "register", "permissions": {"read": ["*"], "subscribe": ["*"]}}
            self._secrets[name] = json.loads(self.ask("POST", "/clients", wanted))["client_secret"]
        self.ask("PUT", f"/clients/client-{number}", {"read": ["*"], "write": ["urn:g:w"], "priority": "control"})
        self._ended.append(self._token(f"gone-{number}"))
        self.ask("DELETE", f"/clients/gone-{number}")
        self._tokens.append(self._token(f"client-{number}"))
        self._ended.append(other := self._token(f"client-{number}"))
        page = f"-H 'Origin: https://localhost:{self.https}' -H 'x-lamplighter-page: 1'"
        self.machine(
            f"curl -sS --insecure --fail -X POST --cookie '__Host-lamplighter={other}' {page} "
            f"https://localhost:{self.https}/page/logout"
        )
        self.ask("POST", "/clients", {"name": f"listed-{number}", "how": "code"})
        if number == 3:  # only once: a token outlives one rotation, and not two
            self.ask("POST", "/keys/rotate", {})
        later = f"INSERT DATA {{ <urn:e:late> <urn:e:is> {number} }}"
        self.ask("POST", "/update?delay=PT30H", later, "application/sparql-update")
        self.ask("POST", "/update?delay=PT0.1S", later, "application/sparql-update")
        self.ask("PATCH", f"/ngsi-ld/v1/entities/{ROOM}/attrs", {"temperature": number})
        self._publish([["porch/temperature", str(number), False]])
        # Version 0.1 may lose a message that comes while it ends.
        self.holds(self._is_read, "the reading of the porch")

    def check(self) -> None:
        """What was used is as it was left."""
        number = self.round
        every = sorted(map(str, range(1, number + 1)))
        self.holds(lambda: self.facts()["late"] == every, "the delayed updates")
        assert self.facts() == {
            "round": [str(number)],
            "all": every,
            "copied": sorted(["0", *every]),
            "stored": self._stored,
            "inferred": [f"urn:e:c{one}" for one in every],
            "late": every,
            "noted": ["urn:e:anna"],
            "adopted": self._adopted,
        }, self.facts()
        refused = self.status(
            "POST", "/update", "INSERT DATA { <urn:e:l> a <urn:e:Lamp> }", "application/sparql-update"
        )
        assert refused[1] == 422, refused
        # Those of stored applications stay pending in a version that does not run these.
        assert len(json.loads(self.ask("GET", "/delayed"))["delayed"]) == number + len(self._stored)
        if self._stores_applications():
            listed = json.loads(self.ask("GET", "/applications"))["applications"]
            stored = {one["name"]: one["state"] for one in listed if one["origin"] == "stored"}
            assert stored == (dict.fromkeys(("porch-light", "stored"), "running") if self._stored else {}), listed
            names = json.loads(self.ask("GET", "/names?kind=actuator&search=porch"))["names"]
            assert not self._stored or "actuator/porch" in [one["id"] for one in names], names
        # Security.
        clients = {one["name"]: one for one in json.loads(self.ask("GET", "/clients"))["clients"]}
        assert sorted(clients) == sorted(f"{kind}-{one}" for one in every for kind in ("client", "listed"))
        for one in every:
            assert clients[f"client-{one}"]["write"] == ["urn:g:w"], clients
            assert clients[f"client-{one}"]["priority"] == "control", clients
        valid, ended = ([self._code(one) for one in tokens[:1] + tokens[-2:]] for tokens in (self._tokens, self._ended))
        assert {*valid} == {200} and {*ended} == {401}, (valid, ended)
        # Subscriptions and deliveries.
        kept = json.loads(
            self.machine(f"{self.python} {self.files}/keeping.py {self.websocket} {self.files}/kept.json")
        )
        assert kept == {"resumed": self._kept, "rows": [str(number)]}, kept
        self._kept = True
        self.holds(self._is_delivered, f"the deliveries of {number}")
        assert [one["state"] for one in json.loads(self.ask("GET", "/webhooks"))["webhooks"]] == ["ok"]
        # Interfaces and devices.
        room = json.loads(self.ask("GET", f"/ngsi-ld/v1/entities/{ROOM}?options=keyValues"))
        assert room["temperature"] == number, room
        assert self._is_read()
        seen = json.loads(self.ask("GET", "/v1.1/Observations?$select=result"))["value"]
        assert number in [one["result"] for one in seen], seen
        if number < 3:  # for each version once
            assert {"adopted"} == {one["state"] for one in self.devices()}

    def _stores_applications(self) -> bool:
        """Version 0.1 does not."""
        return self.status("GET", "/applications")[1] == 200

    def _is_read(self) -> bool:
        thing = f"/things/{quote('urn:dev:ops:32473-porch', safe='')}/properties/temperature"
        return self.status("GET", thing) == (str(self.round), 200)

    def _is_delivered(self) -> bool:
        last: dict[str, str] = {path: json.dumps(body) for path, body in self._received()}
        webhook, inbox, entity = last.get("/hook", ""), last.get("/inbox", ""), last.get("/room", "")
        number = f'"{self.round}"'
        return number in webhook and number in inbox and f'"temperature": {self.round}' in entity

    def devices(self) -> list[dict[str, Any]]:
        text = self.machine("lamplighter devices list --json")
        return [json.loads(line) for line in text.splitlines()]

    def _publish(self, messages: list[list[Any]]) -> None:
        self.machine.put(f"{self.files}/messages", json.dumps(messages))
        self.machine(f"{self.python} {self.files}/publishing.py {self.broker} < {self.files}/messages")

    def _description(self) -> dict[str, Any]:
        temperature = {"type": "number", "readOnly": True, "forms": [{"href": "porch/temperature"}]}
        return {
            "@context": "https://www.w3.org/2022/wot/td/v1.1",
            "id": "urn:dev:ops:32473-porch",
            "title": "porch",
            "base": f"mqtt://127.0.0.1:{self.broker}/",
            "securityDefinitions": {"nosec_sc": {"scheme": "nosec"}},
            "security": "nosec_sc",
            "properties": {"temperature": temperature},
        }


def configure(machine: Shell, folder: str, coap: int = COAP_PORT) -> str:
    """Writes the files beside the settings. Returns tables of settings."""
    machine.put(f"{folder}/shapes/lamp.ttl", SHAPES)
    machine.put(f"{folder}/apps/copy.jsap", json.dumps(APPLICATION))
    return SETTINGS % coap


def put_receiver(machine: Shell, files: str, port: int = RECEIVER_PORT) -> str:
    """The command that runs the receiver of notifications."""
    machine.put(f"{files}/receiver.py", RECEIVER)
    machine.put(f"{files}/received", "")
    return f"exec python3 {files}/receiver.py {port} {files}/received"
