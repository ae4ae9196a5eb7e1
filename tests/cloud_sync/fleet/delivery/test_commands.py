"""The commands: a process that delivers, and is killed."""

import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.subscriptions.records import FilesSink, MqttSink
from lamplighter.cloud_sync.fleet.subscriptions.registry import SubscriptionRegistry
from tests.cloud_sync.fleet.delivery.made_up_matches import lines, match, write_batch
from tests.support.brokers import Mosquitto, mosquitto

LONGEST_S = 120.0


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    for name in ("lake", "out"):
        (tmp_path / name).mkdir()
    return Lake(str(tmp_path / "lake"))


def started(lake: Lake, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lamplighter.cloud_sync.fleet", "subscriptions", "deliver", lake.url]
    return subprocess.Popen([*command, "--every", "0.05", *options], stderr=subprocess.PIPE, text=True)


def until(holds, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + LONGEST_S
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "does not happen"
        time.sleep(0.02)


def test_a_process_delivers_until_it_is_stopped_and_tells_its_states(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["subscriptions", "status", lake.url]) == 2
    assert "nothing was delivered yet" in capsys.readouterr().err
    SubscriptionRegistry(lake).add("hot", "ASK {?s ?p ?o}", deliver=[FilesSink(url=str(out))])
    write_batch(lake, 1, [match(seq=seq) for seq in range(3)])
    process = started(lake)
    try:
        until(lambda: len(lines(out / "hot")) == 3, process)
        assert main(["subscriptions", "deliver", lake.url]) == 75
        assert f"delivery is being written by lamplighter-fleet subscriptions deliver on {socket.gethostname()}" in (
            capsys.readouterr().err
        )
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LONGEST_S)
        assert process.returncode == 0, said
    finally:
        process.kill()
    assert main(["subscriptions", "status", lake.url, "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert (state["delivered"], state["waiting"], state["state"]) == (3, 0, "delivering")
    assert main(["subscriptions", "status", lake.url]) == 0
    assert "hot/files" in capsys.readouterr().out


def test_once_delivers_what_waits_and_names_the_sinks_that_fail(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, command = tmp_path / "out", ["subscriptions", "deliver", lake.url, "--once"]
    assert main(command) == 0, "there is nothing to deliver"
    registry = SubscriptionRegistry(lake)
    registry.add("hot", "ASK {?s ?p ?o}", deliver=[FilesSink(url=str(out)), FilesSink(url=f"{out}-2", name="second")])
    registry.add("cold", "ASK {?s ?p ?o}", deliver=[FilesSink(url=str(out))])
    for number in (1, 2):
        write_batch(lake, number, [match(one, seq=seq + 3 * number) for seq in range(3) for one in ("hot", "cold")])
    capsys.readouterr()
    assert main(command) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lamplighter-fleet")]
    assert len(said) == 1
    assert "subscription hot, sink second: " in said[0]
    assert said[0].endswith("; 6 notifications not delivered")
    assert [one["sequence"] for one in lines(out / "cold")] == [3, 4, 5, 6, 7, 8]
    assert lines(out / "hot") == [{**one, "id": one["id"].replace("cold", "hot"), "subscription": "hot"}
                                  for one in lines(out / "cold")]  # fmt: skip
    (tmp_path / "out-2").mkdir()
    write_batch(lake, 3, [match("cold", seq=9)])
    assert main(command) == 0
    assert len(lines(tmp_path / "out-2" / "hot")) == 6
    Path(lake.path("subscriptions", "records", "broken.json")).write_text("{")
    capsys.readouterr()
    assert main(command) == 1
    assert "broken.json" in capsys.readouterr().err
    assert len(lines(out / "cold")) == 7


@pytest.mark.parametrize("option", ["--every", "--give-up"])
def test_numbers_that_make_no_sense_are_refused(lake: Lake, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for value in ("0", "-1", "nan"):
        assert main(["subscriptions", "deliver", lake.url, option, value]) == 2
        assert f"{option}: takes a number greater than 0" in capsys.readouterr().err


@pytest.fixture
def persistent() -> Iterator[Mosquitto]:
    with mosquitto(settings=["allow_anonymous true", "max_queued_messages 0"]) as broker:
        yield broker


@pytest.mark.faults
def test_a_kill_at_any_time_loses_nothing_and_keeps_the_order(
    lake: Lake, tmp_path: Path, persistent: Mosquitto
) -> None:
    import paho.mqtt.client as mqtt
    from paho.mqtt.enums import CallbackAPIVersion

    from tests.support.brokers import subscribed

    out, gateways, chance = tmp_path / "out", 5, random.Random(20)
    received: list[dict] = []
    listener = mqtt.Client(CallbackAPIVersion.VERSION2)
    listener.on_message = lambda _client, _data, one: received.append(json.loads(one.payload))
    sinks = [FilesSink(url=str(out)), MqttSink(broker="127.0.0.1", port=persistent.port, topic="fleet/{gateway}")]
    SubscriptionRegistry(lake).add("hot", "ASK {?s ?p ?o}", deliver=sinks)
    sequence, kills = 0, 0
    with subscribed(listener, persistent, "fleet/#"):
        while kills < 8:
            process = started(lake)
            # It is killed once it delivers, a random time later, while more is written.
            before = len(received)
            for _ in range(chance.randrange(1, 4)):
                number = sequence // 200 + 1
                rows = [match(gw=f"gw-{n % gateways}", seq=sequence + n // gateways) for n in range(200 * gateways)]
                write_batch(lake, number, rows)
                sequence += 200
            until(lambda before=before: len(received) > before, process)
            time.sleep(chance.uniform(0, 0.3))
            process.kill()
            process.communicate()
            kills += 1
        process = started(lake)
        try:
            wanted = {f"hot/1/gw-{gw}/1/{seq}/added" for gw in range(gateways) for seq in range(sequence)}

            def missing(found) -> set[str]:
                return wanted - {one["id"].rpartition("/")[0] for one in found}

            until(lambda: not missing(received) and not missing(lines(out / "hot")), process)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=LONGEST_S)
        finally:
            process.kill()
    # Files are overwritten, so nothing is in them twice.
    written = lines(out / "hot")
    assert len(written) == len(wanted)
    in_order(written)
    # Messages are repeated, and their ids tell it; without repetitions they are in order.
    seen: set[str] = set()
    first = [one for one in received if not (one["id"] in seen or seen.add(one["id"]))]
    assert len(first) == len(wanted)
    in_order(first)


def in_order(found: list[dict]) -> None:
    sequences = defaultdict(list)
    for one in found:
        sequences[one["gateway"]].append(one["sequence"])
    for gateway, numbers in sequences.items():
        assert numbers == sorted(numbers), gateway
