"""Subscription records on a local lake, on an object store and in memory: written whole, and no change is lost."""

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.landings import FOLDER, LandingLine, file_name
from lamplighter.cloud_sync.fleet.subscriptions import registry as module
from lamplighter.cloud_sync.fleet.subscriptions.records import FilesSink, SubscriptionRecord, UpdateSink
from lamplighter.cloud_sync.fleet.subscriptions.registry import SubscriptionRegistry
from lamplighter.engine.errors import ConfigurationError, RequestSyntaxError, UnsupportedRequestError, UpstreamError

QUERY = "SELECT ?s WHERE { ?s <http://example.org/p> ?o }"
OTHER = "ASK { ?s <http://example.org/p> 1 }"


class Clock:
    """A time that grows by a second with each look."""

    def __init__(self) -> None:
        self.time = datetime(2026, 6, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.time += timedelta(seconds=1)
        return self.time


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def registry(lake: Lake) -> SubscriptionRegistry:
    return SubscriptionRegistry(lake, Clock())


def file_of(lake: Lake, name: str) -> Path:
    return Path(lake.path("subscriptions", "records", f"{name}.json"))


def ids(registry: SubscriptionRegistry) -> list[str]:
    return [record.id for record in registry.all().records]


def test_an_added_subscription_is_read_by_another_process(lake: Lake, registry: SubscriptionRegistry) -> None:
    sinks = (FilesSink(url="/srv/out"), FilesSink(name="second", url="s3://b/out"))
    added = registry.add("co2", QUERY, changes="both", gateways=["gw-*"], begin="all", deliver=sinks)
    assert (added.version, added.state, added.created < added.changed) == (1, "active", True)
    assert added.deliver == sinks
    assert SubscriptionRegistry(lake).get("co2") == added
    assert SubscriptionRegistry(lake).all() == ((added,), ())


def test_a_subscription_that_begins_now_knows_what_has_landed(lake: Lake, registry: SubscriptionRegistry) -> None:
    assert registry.add("before", QUERY).landing is None, "the lake has no landing log"
    lines = [msgspec.json.encode(LandingLine(number, f"gw-1/{number}")) + b"\n" for number in (1, 2, 3)]
    lake.write(b"".join(lines) + b'{"number":', FOLDER, file_name(1))
    assert registry.add("now", QUERY).landing == 3
    assert registry.add("all", QUERY, begin="all").landing is None
    assert registry.replace("now", query=OTHER).landing == 3
    registry.remove("now")
    lake.write(b"".join(lines[:2]), FOLDER, file_name(1))
    assert registry.add("now", QUERY).landing == 2


def test_a_lake_without_subscriptions_has_none_and_is_not_made(lake: Lake, registry: SubscriptionRegistry) -> None:
    assert registry.all() == ((), ())
    with pytest.raises(ConfigurationError, match=r"'co2': not in lake .*lamplighter-fleet subscriptions list"):
        registry.get("co2")
    assert not Path(lake.url).exists()


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "A", "a" * 65, "a\n", "x.json"])
def test_an_id_never_leaves_the_folder(lake: Lake, registry: SubscriptionRegistry, name: str) -> None:
    for call in (registry.get, registry.pause, registry.resume, registry.remove, lambda one: registry.add(one, QUERY)):
        with pytest.raises(ConfigurationError, match="not an id; use up to 64 of a-z"):
            call(name)
    assert not Path(lake.url).exists()


def test_an_id_in_use_is_refused(registry: SubscriptionRegistry) -> None:
    first = registry.add("co2", QUERY)
    registry.pause("co2")
    with pytest.raises(ConfigurationError, match="it exists; choose another id, or use replace"):
        registry.add("co2", OTHER)
    assert registry.get("co2").query == first.query


def test_a_value_out_of_its_bounds_is_refused_and_writes_nothing(lake: Lake, registry: SubscriptionRegistry) -> None:
    for members in (
        {"gateways": ["a\nb"]},
        {"changes": "some"},
        {"deliver": [FilesSink(url="/a"), FilesSink(url="/b")]},
    ):
        with pytest.raises(ConfigurationError, match="subscription 'co2': "):
            registry.add("co2", QUERY, **members)  # type: ignore[arg-type]
    assert registry.all() == ((), ())


def test_a_text_that_cannot_be_executed_is_refused_and_writes_nothing(registry: SubscriptionRegistry) -> None:
    broken = UpdateSink(gateways=("*",), update="INSERT DATE { }")
    with pytest.raises(RequestSyntaxError):
        registry.add("co2", "SELEKT ?s { ?s ?p ?o }")
    with pytest.raises(UnsupportedRequestError, match="line 1, column 26: LIMIT"):
        registry.add("co2", "SELECT ?s { ?s ?p ?o }   LIMIT 1")
    with pytest.raises(RequestSyntaxError):
        registry.add("co2", QUERY, deliver=[broken])
    assert registry.all() == ((), ())
    added = registry.add("co2", QUERY)
    with pytest.raises(RequestSyntaxError):
        registry.replace("co2", query="SELEKT")
    with pytest.raises(RequestSyntaxError):
        registry.replace("co2", deliver=[broken])
    assert registry.get("co2") == added


def test_states_change_the_record_and_not_the_version(registry: SubscriptionRegistry) -> None:
    added = registry.add("co2", QUERY)
    paused = registry.pause("co2")
    assert (paused.state, paused.version, paused.created) == ("paused", 1, added.created)
    assert paused.changed > added.changed
    assert registry.pause("co2") == paused  # nothing is written
    assert registry.all("active").records == ()
    assert registry.all().records == (paused,)
    assert registry.resume("co2").state == "active"


def test_a_removed_subscription_keeps_its_version(registry: SubscriptionRegistry) -> None:
    registry.add("co2", QUERY)
    registry.replace("co2", query=OTHER)
    removed = registry.remove("co2")
    assert (removed.state, removed.version) == ("removed", 2)
    assert registry.remove("co2") == removed
    assert ids(registry) == []
    assert registry.all("removed").records == (removed,)
    for call in (registry.pause, registry.resume, registry.replace):
        with pytest.raises(ConfigurationError, match="it was removed; add it again"):
            call("co2")
    again = registry.add("co2", QUERY)
    assert (again.version, again.state) == (3, "active")
    assert again.created > removed.changed


@pytest.mark.parametrize(
    ("members", "version"),
    [
        ({}, 1),
        ({"query": QUERY}, 1),
        ({"gateways": ["gw-1"]}, 1),
        ({"deliver": [FilesSink(url="/x")]}, 1),
        ({"query": OTHER}, 2),
        ({"changes": "both"}, 2),
        ({"query": OTHER, "changes": "deleted", "gateways": ["gw-1"]}, 2),
    ],
)
def test_another_query_or_other_changes_make_a_version(
    registry: SubscriptionRegistry, members: dict[str, Any], version: int
) -> None:
    added = registry.add("co2", QUERY)
    registry.pause("co2")
    replaced = registry.replace("co2", **members)
    assert (replaced.version, replaced.state, replaced.created) == (version, "paused", added.created)
    for name, value in members.items():
        assert getattr(replaced, name) == (tuple(value) if isinstance(value, list) else value)
    assert registry.get("co2") == replaced


def test_gateways_can_be_replaced_by_all(registry: SubscriptionRegistry) -> None:
    registry.add("co2", QUERY, gateways=["gw-1"])
    assert registry.replace("co2", gateways=[]).gateways == ()


BROKEN = {
    "torn": b'{"id": "torn", "ver',
    "empty": b"",
    "bytes": b"\xff\xfe",
    "list": b"[]",
    "member": b'{"id": "member", "query": "q", "owner": "x", "created": "2026-01-01T00:00:00Z"}',
    "other": b'{"id": "co2", "query": "q", "created": "2026-01-01T00:00:00Z", "changed": "2026-01-01T00:00:00Z"}',
    "large": b" " * (module.RECORD_BYTES_MAX + 1),
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_record_is_named_and_hides_no_other(lake: Lake, registry: SubscriptionRegistry, name: str) -> None:
    added = registry.add("co2", QUERY)
    file_of(lake, name).write_bytes(BROKEN[name])
    found = registry.all()
    assert found.records == (added,)
    [broken] = found.broken
    assert broken.id == name
    assert str(file_of(lake, name)) in broken.reason and "restore it from a backup" in broken.reason
    for call in (registry.get, registry.pause, lambda one: registry.add(one, QUERY)):
        with pytest.raises(ConfigurationError, match=f"{name}.json: not a subscription record"):
            call(name)
    assert file_of(lake, name).read_bytes() == BROKEN[name]


def test_what_another_version_wrote_stays(lake: Lake, registry: SubscriptionRegistry) -> None:
    registry.add("co2", QUERY, deliver=[FilesSink(name="out", url="/srv/out")])
    file = file_of(lake, "co2")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"new": {"x": 1}}))
    registry.replace("co2", deliver=[UpdateSink(name="out", gateways=("*",), update="CLEAR ALL")])
    document = json.loads(file.read_text())
    assert document["new"] == {"x": 1}
    assert [sink["kind"] for sink in document["deliver"]] == ["update"]
    newer = json.dumps(document | {"format": 2}).encode()
    file.write_bytes(newer)
    with pytest.raises(ConfigurationError, match=r"newer version .* wrote it .* install the newer version again"):
        registry.pause("co2")
    assert file.read_bytes() == newer


def test_a_folder_in_place_of_a_record_is_named(lake: Lake, registry: SubscriptionRegistry) -> None:
    added = registry.add("co2", QUERY)
    file_of(lake, "folder").mkdir()
    found = registry.all()
    assert found.records == (added,)
    assert "has to be a file" in found.broken[0].reason


def test_a_crash_between_the_steps_of_a_write_leaves_the_old_record(
    lake: Lake, registry: SubscriptionRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = registry.add("co2", QUERY)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as crashing:
        crashing.setattr(Path, "replace", crash)  # the new file is written, and not yet in place
        with pytest.raises(KeyboardInterrupt):
            registry.replace("co2", query=OTHER)
        with pytest.raises(KeyboardInterrupt):
            registry.add("second", OTHER)
    after = SubscriptionRegistry(lake)
    assert after.all() == ((added,), ())
    assert after.replace("co2", query=OTHER).version == 2
    assert after.add("second", OTHER).version == 1
    assert ids(after) == ["co2", "second"]


def in_threads(*calls: Callable[[], object]) -> list[BaseException | None]:
    """Runs all at once. The error of each, or None."""
    errors: list[BaseException | None] = [None] * len(calls)
    barrier = threading.Barrier(len(calls))

    def run(place: int) -> None:
        barrier.wait()
        try:
            calls[place]()
        except Exception as error:
            errors[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_of_two_who_add_one_id_one_is_refused(lake: Lake) -> None:
    errors = in_threads(*(lambda: SubscriptionRegistry(lake).add("co2", QUERY) for _ in range(4)))
    assert [error for error in errors if error is None] == [None]
    assert all("it exists" in str(error) for error in errors if error is not None)


def test_changes_of_two_operators_are_both_kept(lake: Lake) -> None:
    """Between reading and writing of each, the other one gets its chance to run."""
    SubscriptionRegistry(lake).add("co2", QUERY)
    errors = in_threads(
        *(
            lambda number=number: SubscriptionRegistry(lake).replace("co2", query=f"ASK {{ ?s ?p {number} }}")
            for number in range(8)
        )
    )
    assert errors == [None] * 8
    assert SubscriptionRegistry(lake).get("co2").version == 9


def test_a_writer_that_does_not_end_is_said(
    lake: Lake, registry: SubscriptionRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.add("co2", QUERY)
    monkeypatch.setattr(module, "LOCK_TIMEOUT_S", 0.0)
    with (
        SubscriptionRegistry(lake)._exclusive(),
        pytest.raises(UpstreamError, match="look for a stopped lamplighter-fleet"),
    ):
        registry.pause("co2")
    assert registry.pause("co2").state == "paused"


def test_the_number_of_subscriptions_is_bounded(
    registry: SubscriptionRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SUBSCRIPTIONS_MAX", 2)
    registry.add("a", QUERY)
    registry.add("b", QUERY)
    with pytest.raises(ConfigurationError, match="it has 2 subscriptions, which is the limit; remove some"):
        registry.add("c", QUERY)
    registry.remove("a")  # a tombstone does not count
    assert registry.add("c", QUERY).version == 1
    with pytest.raises(ConfigurationError, match="the limit"):
        registry.add("a", QUERY)


def test_only_changed_files_are_read_again(
    lake: Lake, registry: SubscriptionRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = SubscriptionRegistry(lake)
    registry.add("a", QUERY)
    registry.add("b", QUERY)
    assert ids(reader) == ["a", "b"]
    read: list[str] = []
    whole = lake.fs.cat_file

    def counted(path: str, **arguments: Any) -> bytes:
        read.append(Path(path).stem)
        return bytes(whole(path, **arguments))

    monkeypatch.setattr(lake.fs, "cat_file", counted)
    assert ids(reader) == ["a", "b"]
    assert read == []
    registry.pause("b")
    read.clear()
    assert [record.state for record in reader.all().records] == ["active", "paused"]
    assert read == ["b"]


def test_a_lake_in_memory_has_subscriptions_too() -> None:
    registry = SubscriptionRegistry(Lake(f"memory://{uuid4().hex}"), Clock())
    registry.add("co2", QUERY)
    with pytest.raises(ConfigurationError, match="it exists"):
        registry.add("co2", QUERY)
    assert registry.replace("co2", query=OTHER).version == 2
    assert registry.remove("co2").state == "removed"
    assert ids(registry) == []


@pytest.fixture
def bucket(s3: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake in a bucket of its own."""
    fs = import_module("s3fs").S3FileSystem(**s3)
    name = f"lake-{uuid4().hex}"
    fs.mkdir(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", str(s3["endpoint_url"]))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", str(s3["key"]))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", str(s3["secret"]))
    return Lake(f"s3://{name}/lake")


def test_on_s3_no_change_is_lost(bucket: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another operator changes the record after each reading, until the attempts are used up."""
    ours, theirs = SubscriptionRegistry(bucket, Clock()), SubscriptionRegistry(bucket, Clock())
    ours.add("co2", QUERY)
    whole = SubscriptionRegistry._read_record
    others: list[Callable[[], SubscriptionRecord]] = []

    def read(self: SubscriptionRegistry, name: str) -> Any:
        found = whole(self, name)
        if self is ours and others:
            others.pop()()
        return found

    monkeypatch.setattr(SubscriptionRegistry, "_read_record", read)
    others[:] = [lambda: theirs.replace("co2", gateways=["gw-1"]), lambda: theirs.replace("co2", query=OTHER)]
    paused = ours.pause("co2")
    assert (paused.state, paused.version, paused.query, paused.gateways) == ("paused", 2, OTHER, ("gw-1",))
    assert theirs.get("co2") == paused

    others[:] = [lambda number=number: theirs.replace("co2", gateways=[f"gw-{number}"]) for number in range(9)]
    with pytest.raises(UpstreamError, match="others are changing it; run the command again"):
        ours.resume("co2")
    others.clear()
    assert ours.get("co2").state == "paused"

    others[:] = [lambda: theirs.add("second", OTHER)]
    with pytest.raises(ConfigurationError, match="'second': it exists"):
        ours.add("second", QUERY)
    assert ours.get("second").query == OTHER
    assert ids(ours) == ["co2", "second"]


def test_the_file_is_for_people_too(lake: Lake, registry: SubscriptionRegistry) -> None:
    registry.add("co2", QUERY, deliver=[FilesSink(url="/srv/out")])
    text = file_of(lake, "co2").read_text()
    assert '\n  "query": "SELECT ?s WHERE' in text and text.endswith("}\n")
    assert msgspec.json.decode(text)["deliver"] == [{"kind": "files", "url": "/srv/out"}]
