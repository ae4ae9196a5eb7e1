"""The pages for users name settings, metrics and files that exist, and no test and no module of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.settings_reference import documented_tables, structs
from tests.support.places import ROOT
from tests.support.tables import each_row

USER_PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "SECURITY.md")),
        *(path for path in (ROOT / "docs").rglob("*.md") if "internals" not in path.parts),
    ]
)
PACKAGES = "adapters|cloud_sync|demo|engine|gateway|ontology"
NO_SETTINGS = {"log.bytes", "sync.json", "sync.lock", "changes.key"}
"""Figures of `/health`, and files, that look like settings."""
NAMED_TABLES = ("mqtt.brokers.", "coap.devices.", "http_devices.devices.")
LIBRARY = "lamplighter.engine.client.rdflib"
"""A module that readers import, but no program on the pages does."""


def spans(text: str) -> Iterator[str]:
    """The code spans outside of blocks."""
    outside = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)
    yield from (re.sub(r"\s+", " ", span) for span in re.findall(r"`([^`]+)`", outside))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def unknown_settings(text: str) -> list[str]:
    """Spans such as `limits.x`, `coap.server.x = 1` or `[sync.x]` without such a setting or table."""
    tables = structs()
    keys = {name: set(value.__struct_fields__) for name, value in tables.items()}
    found = []
    for span in spans(text):
        if (key := re.fullmatch(r"([a-z_]+(?:\.[a-z_]+)*)\.([a-z_]+)(?: = .*)?", span)) and key[1] in keys:
            folder = (ROOT / key[1]).is_dir() or (ROOT / "engine" / key[1]).is_dir()
            if key[2] not in keys[key[1]] and span not in NO_SETTINGS and not folder:
                found.append(span)
        table = re.fullmatch(r"\[(([a-z_]+)\.[a-z_.]+)\]", span)
        if table and table[2] in tables and table[1] not in tables and not f"{table[1]}.".startswith(NAMED_TABLES):
            found.append(span)
    return found


def unknown_metrics(text: str) -> list[str]:
    """Names of metrics that neither the gateway nor the fleet's commands export."""
    places = [*(ROOT / "gateway" / "monitoring").glob("*.py"), ROOT / "cloud_sync" / "fleet" / "metrics.py"]
    code = "".join(path.read_text() for path in places)
    words = set(re.findall(r'"(?:lamplighter_|\{PREFIX\}_)?([a-z_]+)"', code))
    # lamplighter_fleet.py is a file, and lamplighter_info is made by the library.
    named = set(re.findall(r"\blamplighter_([a-z]\w*)", text)) - {"fleet", "info"}
    return sorted(name for name in named if not words & set(_families(name)))


def _families(name: str) -> Iterator[str]:
    """What the code may call a metric: without the prefix of a part, and without what a counter or histogram adds."""
    for prefix in ("", "adapter_", "fleet_"):
        for ending in ("", "_total", "_seconds", "_seconds_bucket", "_bucket"):
            yield name.removeprefix(prefix).removesuffix(ending)


def missing_files(text: str) -> list[str]:
    """Spans with a path of a folder of the repository, whose files no reader makes."""
    named = {
        word
        for span in spans(text)
        for word in re.findall(r"(?<![\w./~-])(?:docs|systemd|image|ontology)/[\w./-]*", span)
    }
    return sorted(path for path in named if not (ROOT / path.rstrip(".")).exists())


def public_modules() -> set[str]:
    """What the pages' Python programs import, and the packages above that."""
    found = {LIBRARY}
    for page in USER_PAGES:
        for block in re.findall(r"^ *```python\n(.*?)^ *```$", page.read_text(), re.M | re.S):
            imported = re.findall(r"^ *(?:from|import) (lamplighter[\w.]*)", block, re.M)
            found |= {name.rsplit(".", count)[0] for name in imported for count in range(name.count(".") + 1)}
    return found


def named_code(text: str) -> list[str]:
    """Tests and modules that a page names, but for modules that a reader imports."""
    found = set(re.findall(r"(?<![\w/.-])tests[./][\w./-]+", text))
    for span in spans(text):
        found |= set(re.findall(rf"(?<![\w/.-])(?:{PACKAGES})/[\w/-]+\.py\b", span))
        found |= {
            name
            for name in re.findall(rf"\blamplighter\.(?:{PACKAGES})[\w.]*", span)
            if not any(
                name == one or (name.startswith(f"{one}.") and name[len(one) + 1 :][:1].isupper())
                for one in public_modules()
            )
        }
    return sorted(found)


@each_row("page", USER_PAGES, ids=name_of)
def test_settings_exist(page: Path) -> None:
    assert unknown_settings(page.read_text()) == [], name_of(page)


@each_row("page", USER_PAGES, ids=name_of)
def test_metrics_exist(page: Path) -> None:
    assert unknown_metrics(page.read_text()) == [], name_of(page)


@each_row("page", USER_PAGES, ids=name_of)
def test_files_exist(page: Path) -> None:
    assert missing_files(page.read_text()) == [], name_of(page)


@each_row("page", USER_PAGES, ids=name_of)
def test_pages_name_no_tests_and_no_modules(page: Path) -> None:
    assert named_code(page.read_text()) == [], name_of(page)


def test_wrong_names_are_found() -> None:
    text = "`limits.parse_ms_max` `limits.x` `coap.server.port = 1` `coap.server.x` `[coap.devices]` `[sync.sink]`"
    assert unknown_settings(text) == ["limits.x", "coap.server.x", "[sync.sink]"]
    assert unknown_metrics("lamplighter_quads lamplighter_commits_total lamplighter_unready_total") == ["unready_total"]
    assert missing_files("`docs/index.md` `docs/none.md` `/usr/share/docs/x`") == ["docs/none.md"]
    named = "`tests/test_docs.py` `gateway/clock.py` `lamplighter.gateway.clock` `lamplighter.engine`"
    assert named_code(named) == ["gateway/clock.py", "lamplighter.gateway.clock", "tests/test_docs.py"]


def test_the_page_of_settings_has_each_key() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    assert {table.name for table in documented_tables()} == set(structs())
    for table, value in structs().items():
        assert f"`[{table}]`" in page, table
        for key in value.__struct_fields__:
            assert f"`{key}`" in page or f"`{table}.{key}`" in page or f"[{table}.{key}" in page, f"{table}.{key}"


def test_named_tables_have_each_key() -> None:
    """Those of devices; a broker has keys of `[mqtt]`."""
    page = (ROOT / "docs" / "settings.md").read_text()
    for path, name in (
        ("adapters/coap/settings.py", "CoapDeviceSettings"),
        ("adapters/http/settings.py", "HttpDeviceSettings"),
    ):
        tree = ast.parse((ROOT / path).read_text())
        [table] = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name]
        keys = [
            one.target.id for one in table.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        ]
        assert keys and [key for key in keys if f"`{key}`" not in page] == []
