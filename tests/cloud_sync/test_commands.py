"""`lamplighter sync` and `python -m lamplighter.cloud_sync`, with folders, a real S3 server and a real SFTP server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lamplighter.cloud_sync.commands
import lamplighter.gateway.__main__
from lamplighter.cloud_sync.fleet.__main__ import main as fleet
from lamplighter.cloud_sync.pace import PaceClock
from lamplighter.cloud_sync.settings import clock_trusted, storage_options
from lamplighter.cloud_sync.shipper import alone
from lamplighter.engine.errors import ConfigurationError
from tests.support.destinations import require_module, sftp_server
from tests.support.places import ROOT
from tests.support.shipped_logs import landed_records, records_of, segments
from tests.support.shipping_site import LOG, Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def status(site: Site, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert site.sync("status", "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_new_destination_gets_the_records_that_the_old_one_has(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.configure("to")
    site.data.add_snapshot(1, 9)
    assert site.sync("run", "--once") == 0
    assert fleet(["collect", str(site.folder / "to"), str(site.lake)]) == 0
    assert site.sync("run", "--once") == 0
    assert json.loads((site.data.path / "shipped.json").read_text()) == {"epoch": 1, "last": 9}
    (site.folder / "to").rename(site.folder / "lost")
    (site.folder / "to2").mkdir()
    site.configure("to2")
    assert site.sync("run", "--once") == 0
    assert fleet(["collect", str(site.folder / "to2"), str(tmp_path / "lake2")]) == 0
    assert not (tmp_path / "lake2" / "segments").exists() or landed_records(tmp_path / "lake2") == []
    capsys.readouterr()
    assert site.sync("resend", "--from", "1/1") == 0
    assert capsys.readouterr().out == "the next run ships 3 segments with 9 records\n"
    assert json.loads((site.data.path / "shipped.json").read_text()) == {"epoch": 1, "last": 0}, "retention keeps them"
    assert site.sync("run", "--once") == 0
    assert fleet(["collect", str(site.folder / "to2"), str(tmp_path / "lake2")]) == 0
    assert "3 landed" in capsys.readouterr().out
    assert len(list((tmp_path / "lake2" / "snapshots").rglob("*.zst"))) == 1
    assert site.sync("run", "--once") == 0
    assert landed_records(tmp_path / "lake2") == records_of(LOG)
    assert json.loads((site.data.path / "shipped.json").read_text()) == {"epoch": 1, "last": 9}
    # To a destination that has them, nothing is sent twice.
    objects = sorted(path.name for path in (site.folder / "to2").rglob("*"))
    assert site.sync("resend", "--from", "1/4") == 0
    assert site.sync("run", "--once") == 0
    assert sorted(path.name for path in (site.folder / "to2").rglob("*")) == objects
    assert json.loads((site.data.path / "shipped.json").read_text()) == {"epoch": 1, "last": 9}


@pytest.mark.parametrize(
    ("first", "said"), [("1", "the place of a record"), ("0/1", "the place of a record"), ("1/10", "up to 1/9")]
)
def test_a_place_to_resend_from_that_is_none_is_refused(
    site: Site, capsys: pytest.CaptureFixture[str], first: str, said: str
) -> None:
    site.configure("to")
    assert site.sync("resend", "--from", first) == 2
    assert said in capsys.readouterr().err


def test_what_the_log_has_no_more_is_said(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.configure("to")
    for path in site.data.path.glob("log/1-000000000001*"):
        path.unlink()
    assert site.sync("resend", "--from", "1/1") == 0
    assert "the log begins with 1/" in capsys.readouterr().out


# --- the whole way ---


@pytest.fixture(params=["folder", "s3", "sftp"])
def shipping(request: pytest.FixtureRequest, site: Site) -> Iterator[str]:
    """The URL that a site ships to."""
    if request.param == "folder":
        site.configure("to")
        yield str(site.folder / "to")
    elif request.param == "s3":
        site.configure(f"s3://fleet/{site.folder.name}", request.getfixturevalue("s3"))
        yield f"s3://fleet/{site.folder.name}"
    else:
        require_module("paramiko")
        with sftp_server(site.folder / "server") as (url, options):
            site.configure(f"{url}{site.folder}/to", options)
            yield f"{url}{site.folder}/to"


def test_a_log_goes_to_the_lake_and_the_confirmation_comes_back(
    site: Site, shipping: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = site.folder / "sync-options.toml"
    collect = ["collect", shipping, str(site.lake), *(["--options", str(options)] if options.exists() else [])]
    site.data.add_snapshot(1, 9)
    assert site.sync("run", "--once") == 0
    assert capsys.readouterr().out == (
        "sent up to 1/9, confirmed up to nothing; 3 segments with 9 records unconfirmed\n"
    )
    assert fleet(collect) == 0
    assert "3 landed, 1 snapshot\n" in capsys.readouterr().out
    assert site.sync("run", "--once") == 0
    assert "confirmed up to 1/9; 0 segments" in capsys.readouterr().out
    assert json.loads((site.data.path / "shipped.json").read_text()) == {"epoch": 1, "last": 9}
    assert landed_records(site.lake) == records_of(LOG)
    more = segments("gw-1", 1, [2], begin=10, previous=LOG[-1].seal.sha256)
    site.data.add(*more)
    assert site.sync("run", "--once") == 0
    assert fleet(collect) == 0
    assert site.sync("run", "--once") == 0
    assert landed_records(site.lake) == records_of([*LOG, *more])
    found = status(site, capsys)
    assert (found["confirmed"], found["lag_records"], found["snapshot"]["landed"]) == ([1, 11], 0, True)


@pytest.mark.parametrize(
    ("destination", "options", "told"),
    [
        ("s3://fleet/x", {"secret": "wrong"}, "options file"),
        ("s3://fleet/x", {"endpoint_url": "http://127.0.0.1:9"}, "127.0.0.1:9"),
        ("s3://nobody/x", {}, "s3://nobody/x"),
    ],
)
def test_what_s3_refuses_is_told_and_noted(
    site: Site,
    s3: dict[str, object],
    destination: str,
    options: dict[str, object],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    site.configure(destination, {**s3, "config_kwargs": {"retries": {"max_attempts": 0}}, **options})
    assert site.sync("run", "--once") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lamplighter: {destination}")
    assert told in error
    assert "secret" not in error.partition("options")[0]
    found = status(site, capsys)
    assert (found["lag_segments"], found["last_success"]) == (3, None)
    assert found["last_error"] in error


# --- what people read ---


def test_the_status_for_people(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.configure("to")
    assert site.sync("status") == 0
    before = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if "last" not in line)
    assert before["destination"] == str(site.folder / "to")
    assert before["confirmed"] == "up to nothing"
    assert before["lag"] == f"9 records, {sum(len(one.data) for one in LOG)} bytes in 3 segments"
    assert site.sync("run", "--once") == 0
    capsys.readouterr()
    assert site.sync("status") == 0
    after = capsys.readouterr().out
    assert "sent          up to 1/9\n" in after
    assert re.search(r"^last success  \d+ s ago$", after, re.MULTILINE)


def test_the_status_tells_what_went_wrong(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.configure("none")
    assert site.sync("run", "--once") == 2
    error = capsys.readouterr().err
    assert error == f"lamplighter: {site.folder}/none: there is no such folder; create it, or mount it\n"
    assert site.sync("status") == 0
    assert re.search(r"^last error    \d+ s ago: ", capsys.readouterr().out, re.MULTILINE)


def test_lamplighter_and_the_light_process_say_the_same(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.configure("to")
    assert lamplighter.gateway.__main__.main(["sync", "--config", str(site.config), "run", "--once"]) == 0
    capsys.readouterr()
    assert lamplighter.gateway.__main__.main(["sync", "status", "--json", "--config", str(site.config)]) == 0
    assert json.loads(capsys.readouterr().out) == status(site, capsys)


# --- settings ---


def test_nothing_is_shipped_without_a_destination(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.configure("")
    assert site.sync("run", "--once") == 2
    assert capsys.readouterr().err == (
        "lamplighter: sync.destination is empty; name a folder or a URL in lamplighter.toml\n"
    )
    assert site.sync("status") == 0
    assert "none: sync.destination is empty" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("destinaton = 'x'", "destinaton"),
        ("window = '1-5'", "sync.window"),
        ("interval_s = 0", "sync.interval_s"),
        ("destination = ", "not TOML"),
    ],
)
def test_a_bad_setting_is_named(site: Site, table: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    site.config.write_text(f"[sync]\n{table}\n")
    assert site.sync("status") == 2
    assert told in capsys.readouterr().err


def test_one_shipper_works_on_a_data_folder_at_a_time(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.configure("to")
    with alone(site.data.path):
        assert site.sync("run", "--once") == 2
    assert "another `lamplighter sync` is running" in capsys.readouterr().err


def give_to_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the folder be another user's than root's, and the process root's."""
    if os.geteuid() == 0:
        os.chown(folder, 990, 990)
    else:
        monkeypatch.setattr("os.geteuid", lambda: 0)


def test_root_ships_nothing_where_the_service_could_not_go_on(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.configure("to")
    give_to_another_user(site.data.path, monkeypatch)
    assert site.sync("run", "--once") == 2
    assert "`systemctl start lamplighter-sync` ships now" in capsys.readouterr().err
    assert not (site.data.path / "sync.lock").exists()
    assert list((site.folder / "to").iterdir()) == []
    assert site.sync("status") == 0


def test_a_lock_that_another_user_has_made_is_a_lock_all_the_same(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    root = os.geteuid() == 0
    (site.data.path / "sync.lock").touch()
    (site.data.path / "sync.lock").chmod(0o444)
    if root:
        os.chown(site.data.path, 990, 990)
    monkeypatch.chdir(site.data.path)  # the folders above are closed to others
    try:
        if root:
            os.seteuid(990)
        with alone(Path()):
            pass
    finally:
        if root:
            os.seteuid(0)


def test_a_data_folder_that_is_not_there_is_named(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.configure("to")
    for mode in (["run", "--once"], ["status"]):
        assert site.sync(*mode, "--data", str(site.folder / "none")) == 2
        assert "--data" in capsys.readouterr().err


def test_options_are_read_where_only_their_owner_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "options.toml"
    file.write_text("key = 'beside'\n")
    file.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        storage_options("options.toml", tmp_path)
    file.chmod(0o640)
    assert storage_options("options.toml", tmp_path) == {"key": "beside"}
    assert storage_options("", tmp_path) == {}
    with pytest.raises(ConfigurationError, match=r"No such file.*sync\.options_file"):
        storage_options("none.toml", tmp_path)
    file.write_text("key")
    with pytest.raises(ConfigurationError, match="not TOML"):
        storage_options("options.toml", tmp_path)
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "options.toml").write_text("key = 'of systemd'\n")
    (credentials / "options.toml").chmod(0o400)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    assert storage_options("options.toml", tmp_path) == {"key": "of systemd"}


# --- the process ---


def test_it_goes_on_when_the_destination_comes_back(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mount = site.folder / "mount"
    site.configure("mount", interval_s=7)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if mount.exists():
            raise KeyboardInterrupt
        mount.mkdir()

    monkeypatch.setattr(lamplighter.cloud_sync.commands, "PaceClock", partial(PaceClock, sleep=sleep))
    assert site.sync("run") == 130
    assert waits == [7, 7]
    assert "create it, or mount it" in capsys.readouterr().err
    assert len(list((mount / "gw-1").glob("1-*"))) == 6


@pytest.mark.parametrize(("state", "synchronised"), [(-1, False), (0, True), (1, True), (5, False)])
def test_the_clock_is_trusted_by_the_setting_or_by_the_kernel(
    monkeypatch: pytest.MonkeyPatch, state: int, synchronised: bool
) -> None:
    assert clock_trusted("auto") in (True, False)  # the real call
    monkeypatch.setattr("lamplighter.cloud_sync.settings._LIBC", SimpleNamespace(adjtimex=lambda _: state))
    assert [clock_trusted(trust) for trust in ("auto", "always", "never")] == [synchronised, True, False]


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_the_shipper_loads_neither_a_store_nor_a_jvm(
    request: pytest.FixtureRequest, site: Site, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "folder":
        site.configure("to")
    else:
        site.configure(f"s3://fleet/{site.folder.name}", request.getfixturevalue("s3"))
    heavy = [
        "pyspark",
        "py4j",
        "pandas",
        "pyarrow",
        "numpy",
        "pyoxigraph",
        "rdflib",
        "starlette",
        "lamplighter.gateway",
    ]
    heavy += ["fsspec", "asyncio"] if kind == "folder" else []
    command = ["run", "--once", "--config", str(site.config)]
    script = (
        f"import sys; from lamplighter.cloud_sync.__main__ import main; assert main({command}) == 0; "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.splitlines()[-1] == "[]"
