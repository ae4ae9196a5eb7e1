"""A pushed subscription from the registry to a gateway process and back, by the commands that operators run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from lamplighter.cloud_sync.__main__ import main as sync_main
from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.status import sealed_segments
from tests.cloud_sync.conftest import spark as spark
from tests.cloud_sync.fleet.delivery.made_up_matches import lines
from tests.support.gateway_process import GatewayProcess, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOT = "SELECT ?place ?value { ?place <http://e/value> ?value FILTER(?value > 30) }"


class _Road:
    """A gateway process, a destination, a lake and the folder of a sink."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("to", "lake", "out", "gateway"):
            (folder / name).mkdir()
        key = Ed25519PrivateKey.generate()
        private = folder / "fleet.key"
        private.touch(mode=0o600)
        private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        public = folder / "gateway" / "fleet.pub"
        public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        public.chmod(0o644)
        self.orders = ["--orders", str(folder / "to")]
        self.lake = str(folder / "lake")
        self.gateway = GatewayProcess(
            folder / "gateway",
            gateway={"clock_trusted": "always", "durability": "off"},
            log={"segment_bytes_max": 1},
            sync={"destination": str(folder / "to")},
        )
        with self.gateway.config.open("a") as file:
            url = f"ws://127.0.0.1:{self.gateway.websocket_port}/subscribe"
            file.write(f"[sync.orders]\nkey_file = 'fleet.pub'\nurl = '{url}'\n")

    def sync(self, sealed: int = 0) -> None:
        """One run of the shipper, once the gateway has sealed the record with this sequence."""
        data = self.gateway.folder / "data"

        def is_sealed() -> bool:
            return any(one.end[1] >= sealed for one in sealed_segments(data))

        if sealed:
            wait_for(is_sealed, what=f"the seal of record {sealed}")
        assert sync_main(["run", "--once", "--config", str(self.gateway.config)]) == 0

    def fleet(self, command: str, *options: str) -> None:
        assert main(["subscriptions", command, self.lake, *options]) == 0

    def push(self) -> None:
        self.fleet("push", *self.orders, "--orders-key", str(self.folder / "fleet.key"))

    def collect(self) -> None:
        assert main(["collect", str(self.folder / "to"), self.lake]) == 0

    def notified(self) -> list[dict[str, Any]]:
        """Matches what there is, delivers it, and returns all that the sink has."""
        self.fleet("match", *self.orders)
        self.fleet("deliver", "--once")
        return lines(self.folder / "out" / "hot")

    def ahead(self) -> list[dict[str, Any]]:
        found = sorted((self.folder / "to" / "ahead").glob("*/*.ndjson"))
        return [json.loads(line) for path in found for line in path.read_bytes().splitlines()]


@pytest.mark.faults
@pytest.mark.fleet_faults
def test_a_pushed_subscription_is_told_ahead_notified_once_compared_and_ended(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    road = _Road(tmp_path)
    with road.gateway as gateway:
        gateway.update("INSERT DATA { <http://e/a> <http://e/value> 99 }")  # before the gateway is told
        road.sync(sealed=1)
        road.collect()
        road.fleet("add", "hot", "--query", HOT, "--to", f"files:{tmp_path / 'out'}")
        road.push()
        road.sync()
        road.push()
        assert "1 confirmed" in capsys.readouterr().out
        gateway.update("INSERT DATA { GRAPH <http://e/g> { <http://e/b> <http://e/value> 20, 40 } }")
        gateway.update("INSERT DATA { <http://e/c> <http://e/value> 50 }")
        road.sync(sealed=4)  # the second record is the subscription's
        first = road.notified()
        ahead, spark_only = first[:2], first[2:]
        assert [_told(one) for one in ahead] == [("http://e/g", "http://e/b", "40"), (None, "http://e/c", "50")]
        assert {one["time"] for one in ahead} == {None}, "they came ahead of the segments"
        assert [_told(one) for one in spark_only] == [(None, "http://e/a", "99")]

        road.collect()
        assert road.notified() == first
        capsys.readouterr()
        road.fleet("status")
        assert "compared with Spark: 2 equal, 0 different, 0 unfound" in capsys.readouterr().out

        road.fleet("remove", "hot")
        road.push()
        road.sync()
        gateway.update("INSERT DATA { <http://e/d> <http://e/value> 60 }")
        before = road.ahead()
        road.sync(sealed=6)
        assert road.ahead() == before, "the gateway does not evaluate it any more"
        road.collect()
        assert road.notified() == first


def _told(one: dict[str, Any]) -> tuple[str | None, str, str]:
    [row] = one["results"]["results"]["bindings"]
    return one["graph"], row["place"]["value"], row["value"]["value"]
