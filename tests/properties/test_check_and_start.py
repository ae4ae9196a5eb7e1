"""What `lamplighter check` accepts, the start accepts; what it refuses, the start refuses or does not run.

Each generated configuration has some mistakes, or none. The start is that of `lamplighter run --all` in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lamplighter.engine.errors import GatewayError
from lamplighter.gateway.cli.check_command import check_configuration
from lamplighter.gateway.service.configuration import Configuration
from lamplighter.gateway.service.process import run_gateway
from tests.support.amounts import AMOUNTS
from tests.support.forks import forks, forks_gone

LIMIT_S = 120.0
RULE = "[[stream]]\ntopic = 'home/{room}/temperature'\nproperty = 'lighting:temperature'\npayload = 'number'\n"


@dataclass
class Case:
    """A configuration. ports: that another program holds."""

    folder: Path
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    profile: dict[str, Any] = field(default_factory=dict)
    profile_text: str = ""
    rules: str = RULE
    held: list[socket.socket] = field(default_factory=list)

    def write(self) -> Path:
        for name in ("apps", "mapping"):
            (self.folder / name).mkdir()
        (self.folder / "apps" / "app.jsap").write_text(self.profile_text or json.dumps(self.profile))
        (self.folder / "mapping" / "home.toml").write_text(self.rules)
        path = self.folder / "lamplighter.toml"
        lines = []
        for table, keys in self.tables.items():
            lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
        path.write_text("\n".join(lines))
        return path


Change = Callable[[Case], None]


def setting(table: str, **keys: Any) -> Change:
    return lambda case: case.tables.setdefault(table, {}).update(keys)


def entry(member: str, name: str, **members: Any) -> Change:
    return lambda case: case.profile[member].setdefault(name, {}).update(members)


def rules(text: str) -> Change:
    def change(case: Case) -> None:
        case.rules += text

    return change


def no_json(case: Case) -> None:
    case.profile_text = '{"queries": '


def port_in_use(case: Case) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    case.held.append(taken)
    case.tables.setdefault("http", {})["port"] = taken.getsockname()[1]
    case.tables.setdefault("security", {})["https_port"] = taken.getsockname()[1]


def one_port_for_both(case: Case) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    setting("http", port=port)(case)
    setting("websocket", port=port)(case)


def data_is_a_file(case: Case) -> None:
    (case.folder / "data").write_text("")


def aggregator(**members: Any) -> Change:
    return lambda case: case.profile["extended"]["lamplighter"]["aggregators"]["a"].update(members)


GOOD: dict[str, Change] = {
    "a limit": setting("query", rows_max=5),
    "secure": setting("security", enabled=True),
    "an option": setting("gateway", log_level="debug"),
    "another query": entry("queries", "ANY", sparql="ASK { ?x ?y ?z }"),
    "a query with a value": entry(
        "queries", "ONE", sparql="SELECT ?y { ?x :p ?y }", forcedBindings={"x": {"type": "uri", "value": ""}}
    ),
    "a published query": rules("[[publish]]\ntopic = 'out/{x}'\nquery = 'SELECT ?x { ?x a lighting:Lamp }'\n"),
    "a broker that is away": setting("mqtt", host="127.0.0.1", port=9),
    "CoAP": setting("coap", enabled=True),
}
BAD: dict[str, Change] = {
    "text for a number": setting("http", port="8000"),
    "unknown key": setting("http", prot=1),
    "unknown table": setting("htp", port=1),
    "misspelt value": setting("gateway", durability="fsnc"),
    "number out of range": setting("query", rows_max=0),
    "host with a port": setting("security", hosts=["a:1"]),
    "open to the network": setting("http", host="0.0.0.0"),
    "unknown host": setting("websocket", host="no host"),
    "path of another resource": setting("http", query_path="/delayed"),
    "no IRI": setting("gateway", base_iri="no iri"),
    "IRI without an end": setting("gateway", base_iri="http://here.example"),
    "unknown user": setting("security", enabled=True, local_users=["nosuch"]),
    "missing certificate": setting("security", enabled=True, certificate_file="a.pem", key_file="a.key"),
    "certificate without key": setting("security", certificate_file="a.pem"),
    "wrong name": setting("security", enabled=True, names=["no name"]),
    "long socket folder": setting("security", enabled=True, socket_folder="x" * 200),
    "wrong grant": setting("security", grant_read=["no iri"]),
    "missing password file": setting("mqtt", host="127.0.0.1", username="u", password_file="/nonexistent/password"),
    "missing CA file": setting("mqtt", host="127.0.0.1", tls=True, ca_file="/nonexistent/ca.pem"),
    "CA file without a certificate": setting("mqtt", host="127.0.0.1", tls=True, ca_file="/etc/hostname"),
    "certificate without TLS": setting("mqtt", certificate_file="a.pem"),
    "no network": setting("coap", networks=["home"]),
    "no network of web servers": setting("http_devices", enabled=True, networks=["home"]),
    "missing secret of a web server": setting(
        "http_devices", enabled=True, devices={"a": {"origin": "http://a", "secret_file": "/nonexistent/secret"}}
    ),
    "no filter": setting("mqtt", publish=["a/#/b"]),
    "port in use": port_in_use,
    "one port for both": one_port_for_both,
    "data is a file": data_is_a_file,
    "no JSON": no_json,
    "SELEKT": entry("queries", "Q", sparql="SELEKT ?x { ?x :p ?y }"),
    "SELEKT for clients": entry("queries", "ANY", sparql="SELEKT ?x { ?x :p ?y }"),
    "no subscription": entry("queries", "Q", sparql="ASK { ?x :p ?y }"),
    "unknown prefix": entry("queries", "Q", sparql="SELECT ?x { ?x nosuch:p ?y }"),
    "unknown member": entry("queries", "Q", spraql="SELECT ?x { ?x :p ?y }"),
    "update that does not parse": entry("updates", "U", sparql="INSRT { ?x :q 1 } WHERE {}"),
    "unknown member of an update": entry("updates", "U", dealy="PT1S"),
    "no time": entry("updates", "U", delay="30 s"),
    "value that is not selected": entry("updates", "U", forcedBindings={"w": {"type": "uri", "value": ""}}),
    "default that does not fit": entry("updates", "U", forcedBindings={"v": {"type": "uri", "value": "no iri"}}),
    "missing query": aggregator(query="R"),
    "missing update": aggregator(added="V"),
    "unknown member of an aggregator": aggregator(aded="U"),
    "rule without a property": rules("[[stream]]\ntopic = 'x'\n"),
    "misspelt key of a rule": rules("[[stream]]\ntopic = 'x'\npropertie = 'a'\npayload = 'number'\n"),
    "unknown payload": rules("[[stream]]\ntopic = 'x'\nproperty = 'lighting:a'\npayload = 'bool'\n"),
    "unknown table of rules": rules("[[steam]]\ntopic = 'x'\n"),
    "rules that are no TOML": rules("[[stream]\n"),
    "published query that does not parse": rules("[[publish]]\ntopic = 'out'\nquery = 'SELEKT ?x { ?x ?y ?z }'\n"),
    "topic without its value": rules("[[publish]]\ntopic = 'out/{w}'\nquery = 'SELECT ?x { ?x ?y ?z }'\n"),
}


def case_in(folder: Path) -> Case:
    """A good configuration."""
    tables: dict[str, dict[str, Any]] = {
        "gateway": {"durability": "off", "clock_trusted": "always"},
        "http": {"port": 0},
        "websocket": {"port": 0},
        "security": {"host": "127.0.0.1", "https_port": 0, "wss_port": 0},
        "coap": {"enabled": False},
    }
    profile = {
        "namespaces": {"": "http://e/"},
        "queries": {"Q": {"sparql": "SELECT ?x ?y { ?x :p ?y }"}},
        "updates": {
            "U": {
                "sparql": "INSERT DATA { ?x :q ?y }",
                "forcedBindings": {"x": {"type": "uri", "value": ""}, "y": {"type": "literal", "value": ""}},
            }
        },
        "extended": {"lamplighter": {"aggregators": {"a": {"query": "Q", "added": "U"}}}},
    }
    return Case(folder, tables, profile)


@contextmanager
def errors_logged() -> Iterator[list[str]]:
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Handler(logging.ERROR)
    logging.getLogger().addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger().removeHandler(handler)


def start_fault(path: Path) -> str:
    """Why the start fails, or what does not run; "" if everything does."""

    async def start() -> list[str]:
        configuration = Configuration.read(path, None)
        stop = asyncio.Event()
        before = forks()
        async with asyncio.timeout(LIMIT_S):
            try:
                await run_gateway(configuration, stop, lambda addresses, recovery: stop.set(), adapters=True)
            finally:
                await forks_gone(before)
        return list(configuration.faults)

    with errors_logged() as errors:
        try:
            return "\n".join([*asyncio.run(start()), *errors])
        except GatewayError as error:
            return str(error)


def check_fault(path: Path) -> str:
    try:
        check_configuration(argparse.Namespace(config=path, data=None))
    except GatewayError as error:
        return str(error)
    return ""


def judged(names: list[str]) -> tuple[str, str]:
    """What check and start say about a configuration with these changes."""
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        case = case_in(Path(folder))
        for name in names:
            (GOOD | BAD)[name](case)
        path = case.write()
        try:
            return check_fault(path), start_fault(path)
        finally:
            for one in case.held:
                one.close()


@settings(max_examples=AMOUNTS.of(40))
@given(st.lists(st.sampled_from(sorted(GOOD)), max_size=3, unique=True), st.data())
def test_check_and_start_agree(good: list[str], data: st.DataObject) -> None:
    bad = data.draw(st.lists(st.sampled_from(sorted(BAD)), max_size=2, unique=True))
    said, happened = judged([*good, *bad])
    assert bool(said) == bool(happened), (said, happened)


def test_each_mistake_is_refused_by_both_and_nothing_else_is() -> None:
    # `port in use` and the like need the plain gates, which is what the base has.
    unnoticed = {name: judged([name]) for name in BAD}
    assert {name: found for name, found in unnoticed.items() if not all(found)} == {}
    assert judged(sorted(GOOD)) == ("", "")
