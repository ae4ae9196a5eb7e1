"""Imports between packages and rooms point one way, and what must be light loads little."""

import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from lamplighter.adapters.specs import ADAPTERS
from tests.support.places import ROOT
from tests.support.sources import Source, modules, parsed, source
from tests.support.tables import each_row

PACKAGES = ("ontology", "engine", "adapters", "cloud_sync", "gateway", "demo")

ALLOWED = {
    "ontology": set(),
    "engine": {"engine"},
    "adapters": {
        "adapters",
        "ontology",
        "engine.client",
        "engine.errors",
        "engine.extras",
        "engine.log_events",
        "engine.networks",
        "engine.pacing",
        "engine.sharing",
        "engine.tables",
        "engine.terms",
    },
    "cloud_sync": {
        "cloud_sync",
        "ontology",
        "engine.change_log",
        "engine.client",
        "engine.errors",
        "engine.extras",
        "engine.log_events",
        "engine.networks",
        "engine.pacing",
        "engine.sparql",
        "engine.tables",
        "engine.terms",
    },
    "gateway": {"gateway", "engine", "adapters", "ontology", "cloud_sync"},
    "demo": {"demo", "gateway", "engine", "ontology", "cloud_sync"},
}
"""package -> packages or modules of ours that it may import."""
STARTS_THE_DEMO = {"gateway/cli/process_commands.py"}
"""Commands that load the demo when somebody asks for it."""


ROOMS = {
    "engine": [
        {"extras", "tables"},
        {"errors", "log_events", "networks", "pacing", "sharing", "slices", "terms"},
        {"access", "delta", "term_bounds", "work"},
        {"store", "change_log"},
        {"sparql"},
        {"matching", "protocol", "querying"},
        {"inference", "shacl", "updating"},
        {"core"},
        {"rdflib"},
        {"client"},
        {"__init__"},
    ],
    "gateway": [
        {"__init__", "clock", "disk", "sharing", "systemd", "texts"},
        {"settings"},
        {"addresses", "page", "security", "workers"},
        {"state"},
        {"log"},
        {"devices", "history", "monitoring"},
        {"loop"},
        {"local_time"},
        {"templates"},
        {"gates"},
        {"service"},
        {"cli"},
        {"__main__"},
    ],
    "gateway/gates": [
        {"__init__", "bounded_sockets", "listeners", "local_call", "outbox"},
        {"sinks"},
        {"http", "websocket"},
        {"deliveries", "event_streams", "standards"},
        # the APIs, of which none knows another
        {"changes", "ldn", "mcp", "ngsild", "sensorthings", "sse", "webhooks", "wot"},
        {"apis"},
        {"protection_check"},
        {"opening"},
    ],
    "adapters": [
        {"__init__", "client", "literals", "networks", "specs"},
        {"counting", "lasting_updates"},
        {"presence"},
        {"model"},
        {"mapping", "parts"},
        {"devices"},
        {"resources"},
        {spec.parts.split(".")[2] for spec in ADAPTERS},
    ],
    "cloud_sync": [
        {"__init__", "answers", "files", "pace", "settings"},
        {"destinations", "status"},
        {"lineage"},
        {"early_notifications", "orders", "shipper"},
        {"order_intake"},
        {"order_client"},
        {"commands"},
        {"__main__", "fleet"},
    ],
    "cloud_sync/destinations": [
        {"base"},
        {"folder", "fsspec_folder", "renewed"},
        {"s3"},
        {"__init__"},
    ],
    "cloud_sync/fleet": [
        {"__init__", "lazy"},
        {"local"},
        {"session", "subcommands"},
        {"lake", "package"},
        {"collection"},
        {"tables"},
        {"sparql", "events"},
        {"queries", "subscriptions"},
        {"delivery", "jobs"},
        {"deletion", "metrics", "report"},
        {"__main__"},
        {"submit"},
    ],
}
"""folder -> its rooms (folders and modules) by floor, the lowest first; a room imports from the floors below it."""


def imported(module: Source) -> set[str]:
    """The modules of ours that a module imports, without the prefix, those inside functions too."""
    found = {name for name, _ in module.imports}
    # `from lamplighter.engine import client` imports a module by another way.
    found |= {f"{package}.{name}" for package, names in module.imports for name in names if package in FOLDERS}
    return {name.removeprefix("lamplighter.") for name in found}


@cache
def imports(path: Path) -> set[str]:
    return imported(source(path))


FOLDERS = {
    "lamplighter",
    *(
        f"lamplighter.{'.'.join(path.parent.relative_to(ROOT).parts)}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("__init__.py")
    ),
}


@each_row("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    assert modules(package)
    for path in modules(package):
        for name in imports(path):
            if name.partition(".")[0] in PACKAGES:
                allowed = any(name == one or name.startswith(f"{one}.") for one in ALLOWED[package])
                demo = name.partition(".")[0] == "demo" and str(path.relative_to(ROOT)) in STARTS_THE_DEMO
                assert allowed or demo, f"{path.relative_to(ROOT)} imports {name}"


@each_row("package", ROOMS)
def test_rooms_are_on_floors(package: str) -> None:
    floors = {room: number for number, rooms in enumerate(ROOMS[package]) for room in rooms}
    for path in modules(package):
        room = path.relative_to(ROOT / package).parts[0].removesuffix(".py")
        assert room in floors, f"{path.relative_to(ROOT)} is in no room"
        for name in imports(path):
            inside, inner = f"{package.replace('/', '.')}.", f"{name}."
            if not inner.startswith(inside) or inner == inside:
                continue
            other = inner.removeprefix(inside).partition(".")[0]
            other = other if other in floors else "__init__"  # a name that the folder itself exports
            if other != room:
                assert floors[other] < floors[room], f"{path.relative_to(ROOT)} imports {name}"


def test_no_files_import_each_other() -> None:
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for package in PACKAGES
        for path in modules(package)
    }
    places = {name: str(path.relative_to(ROOT)) for name, path in files.items()}
    arrows = {
        (places[name], places[other])
        for name, path in files.items()
        for other in imports(path)
        if other in places and other != name
    }
    graph = {place: {other for one, other in arrows if one == place} for place in places.values()}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_the_check_itself_notices_an_arrow_that_turns_round() -> None:
    wrong = "def f():\n    from lamplighter.gateway import runner\n"
    assert "gateway.runner" in imported(parsed(wrong))


STARTS_A_GATEWAY = {"running_gateway", "secure_gateway", "SecureGateway", "GatewayProcess", "gateway_process"}
"""Names of `tests.support` and of the benchmarks that start a gateway with its listeners."""


@each_row("package", PACKAGES)
def test_unit_tests_start_no_whole_gateway(package: str) -> None:
    for path in modules(f"tests/{package}"):
        if any(name in path.read_text() for name in STARTS_A_GATEWAY):
            names = {name for _, names in source(path).imports for name in names} & STARTS_A_GATEWAY
            assert not names, f"{path.relative_to(ROOT)} imports {names}; its place is tests/whole_gateway"


def test_one_adapter_does_not_know_the_other() -> None:
    for package, other in (
        ("adapters/mqtt", "lamplighter.adapters.coap"),
        ("adapters/coap", "lamplighter.adapters.mqtt"),
    ):
        for path in modules(package):
            assert not any(name.startswith(other) for name in imports(path)), path


READS_A_FILE = "engine/updating/documents.py"
"""`Engine.load` reads the file that its caller names."""


def test_only_load_opens_a_file_in_the_engine() -> None:
    for path in modules("engine"):
        opens = source(path).called & {"open", "read_bytes", "read_text", "write_bytes", "write_text", "GzipFile"}
        relative = str(path.relative_to(ROOT))
        if not relative.startswith("engine/client/"):
            assert opens == ({"open", "GzipFile"} if relative == READS_A_FILE else set()), relative


def test_engine_does_no_io_but_in_its_client() -> None:
    doing_io = {"asyncio", "socket", "websockets", "threading", "time", "os", "pathlib", "logging"}
    for path in modules("engine"):
        tops = {name.partition(".")[0] for name in imports(path)}
        if path.name in ("errors.py", "core.py", "quad_store.py"):
            tops -= {"pathlib"}  # the type of an attribute and of an argument
        if path.name == "core.py":
            tops -= {"time"}  # to measure itself, when it is told to
        if str(path.relative_to(ROOT)) == READS_A_FILE:
            tops -= {"os", "pathlib"}
        if path.name == "log_events.py":
            tops -= {"logging"}  # for the client and for the other packages
        if path.parent.name != "client":
            assert not tops & doing_io, f"{path.name} imports {tops & doing_io}"
            logging_or_client = ("engine.client", "engine.log_events")
            assert not any(name.startswith(logging_or_client) for name in imports(path)), path.name


@each_row(
    "module",
    [
        "lamplighter.engine.client",
        "lamplighter.engine.change_log.codec",
        "lamplighter.adapters.mqtt.adapter",
        "lamplighter.adapters.coap.adapter",
        "lamplighter.adapters.coap.protection",
        "lamplighter.cloud_sync.__main__",
        "lamplighter.cloud_sync.shipper",
        "lamplighter.cloud_sync.fleet.collection.collector",
    ],
)
def test_light_processes_load_no_store(module: str) -> None:
    script = (
        f"import sys, {module}; "
        "heavy = ('pyoxigraph', 'rdflib', 'starlette', 'httpx', 'cryptography', 'fsspec', 'pyspark', 'pandas', "
        "'pyarrow', 'numpy'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_a_door_that_is_off_loads_nothing() -> None:
    script = (
        "import sys, pathlib, lamplighter.gateway.service.process; "
        "from lamplighter.gateway.gates.apis import api_routes; "
        "from lamplighter.gateway.settings import Settings; "
        "api_routes(Settings(), pathlib.Path()); "
        "print([name for name in ('mcp', 'mcp_types', 'pydantic', 'jsonschema') if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
