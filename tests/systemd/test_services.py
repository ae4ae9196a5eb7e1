"""The package on a real Debian under a real systemd, offline: from its installation until it is purged.

The tests build on each other, in this order: each finds the machine as the one before has left it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.components import missing, require_command
from tests.support.places import ROOT
from tests.support.units import UNITS
from tests.systemd.machine import Machine, built_package, rebuild, run, with_bytecode

pytestmark = pytest.mark.faults

WATCHDOG_S = 8
BROUGHT = "usr/share/lamplighter/etc"
SETTINGS = "/etc/lamplighter/lamplighter.toml"
INSTALLER = "/opt/environment/bin/python -P /opt/environment/bin/lamplighter"
CONNECTING = """
import socket, ssl, sys, time
secure = ssl._create_unverified_context()
end, answered, refused = time.monotonic() + float(sys.argv[1]), 0, []
while time.monotonic() < end:
    try:
        with socket.create_connection(("127.0.0.1", 8443), timeout=60) as plain:
            with secure.wrap_socket(plain, server_hostname="localhost") as client:
                client.sendall(b"GET /ca.pem HTTP/1.1\\r\\nHost: here\\r\\nConnection: close\\r\\n\\r\\n")
                answered += client.recv(100).startswith(b"HTTP/1.1 200")
    except ConnectionRefusedError as error:
        refused.append(str(error))
    except OSError:
        pass  # one that was under way when its gateway was killed
    time.sleep(0.01)
print(answered, len(refused))
"""


@pytest.fixture(scope="module")
def package() -> Path:
    if os.geteuid() != 0:
        missing("systemd-nspawn and mmdebstrap need root")
    for command in ("systemd-nspawn", "mmdebstrap"):
        require_command(command)
    return built_package(ROOT)


@pytest.fixture(scope="module")
def machine(package: Path) -> Iterator[Machine]:
    machine = Machine("services")
    # As it is shipped, for `test_installed_it_runs`, and one that compiles nothing at each of the other installations.
    run("cp", str(package), str(machine.root / "root/shipped.deb"))
    rebuild(package, machine.root / "root/lamplighter.deb", "", with_bytecode)
    machine.put("/root/connecting.py", CONNECTING)
    # The units' own minute would be waited for twice.
    drop_in = f"[Service]\nWatchdogSec={WATCHDOG_S}\n"
    machine.put("/etc/systemd/system/lamplighter-gateway.service.d/test.conf", drop_in)
    yield machine
    machine.end()


def test_the_package_has_the_web_page_and_the_documents(package: Path) -> None:
    files = run("dpkg-deb", "--contents", str(package))
    assert "site-packages/lamplighter/gateway/page/built/index.html" in files
    assert "gateway/page/source" not in files
    assert "site-packages/lamplighter/gateway/page/built-docs/index.html.gz" in files


def all_is_well(machine: Machine) -> bool:
    units = ("lamplighter-gateway", "lamplighter-coap", "lamplighter-http.socket", "lamplighter-ws.socket")
    active = all(machine.show(unit, "ActiveState") == "active" for unit in units)
    return active and machine("systemctl --failed --no-legend") == ""


def rows(machine: Machine, query: str) -> list[str]:
    answer = json.loads(machine(f"lamplighter query '{query}'"))
    return [binding["o"]["value"] for binding in answer["results"]["bindings"]]


NUMBERS = "SELECT ?o { <http://e/s> <http://e/p> ?o } ORDER BY ?o"


def insert(machine: Machine, number: int) -> None:
    machine(f"lamplighter update 'INSERT DATA {{ <http://e/s> <http://e/p> {number} }}'")


def test_an_upgrade_from_conffiles_asks_nothing(machine: Machine, package: Path) -> None:
    """Version 0.1 had its settings as conffiles of dpkg, which asks where one is edited."""

    def with_conffiles(tree: Path) -> None:
        run("cp", "-r", f"{tree / BROUGHT}/.", str(tree / "etc/lamplighter"))
        run("rm", "-r", str(tree / BROUGHT))
        files = [path for path in (tree / "etc/lamplighter").rglob("*") if path.is_file()]
        with_bytecode(tree)
        (tree / "DEBIAN/conffiles").write_text("".join(f"/{path.relative_to(tree)}\n" for path in files))
        (tree / "etc/lamplighter/mapping/street.toml").write_text("# old\n")

    rebuild(package, machine.root / "root/old.deb", "0.0", with_conffiles)
    machine("dpkg --install /root/old.deb 2>&1")
    before = (machine.root / SETTINGS[1:]).read_text()
    machine.put(SETTINGS, before + "# edited\n")
    said = machine("dpkg --install /root/lamplighter.deb < /dev/null 2>&1")
    assert [line for line in said.splitlines() if "stays as you edited it" in line] == [
        f"lamplighter: {SETTINGS} stays as you edited it; this version's is /{BROUGHT}/lamplighter.toml"
    ]
    assert (machine.root / SETTINGS[1:]).read_text().endswith("# edited\n")
    assert (machine.root / "etc/lamplighter/mapping/street.toml").read_text() != "# old\n"
    machine("dpkg --purge lamplighter 2>&1")
    assert not (machine.root / "etc/lamplighter").exists()


def test_installed_it_runs(machine: Machine) -> None:
    machine("dpkg --install /root/shipped.deb")
    assert machine("find /usr/lib/lamplighter/lib -name '__main__.cpython-*.pyc' -path '*/gateway/*'") != ""
    machine("systemctl daemon-reload; systemctl restart lamplighter-gateway")
    machine.wait(lambda: all_is_well(machine), 60, "the services")
    # The clock is that of the machine which runs the tests.
    status = machine.show("lamplighter-gateway", "StatusText")
    assert re.fullmatch(r"(clock degraded: .*; )?5 subscriptions, [0-9.]+ updates/s(, log synced)?", status), status
    assert machine.show("lamplighter-gateway", "User") == "lamplighter"
    # No broker and no destination are named, so these two have nothing to do, which is no failure.
    assert machine.show("lamplighter-mqtt", "ActiveState") == "inactive"
    assert machine.code("systemctl start lamplighter-sync") == 0
    assert machine.show("lamplighter-sync", "Result") == "exec-condition"
    assert machine("stat --format=%a-%U /etc/credstore") == "700-root"
    insert(machine, 1)
    assert rows(machine, NUMBERS) == ["1"]


def test_what_listens_is_what_is_documented(machine: Machine) -> None:
    listening = machine("cat /proc/net/tcp /proc/net/tcp6").splitlines()
    ports = {int(line.split()[1].rpartition(":")[2], 16) for line in listening if line.split()[3] == "0A"}
    assert ports - {1883} == {8443, 9443}  # 1883 is the broker's, on loopback
    assert machine.code("curl --silent --insecure --fail https://localhost:8443/health") != 0
    assert (
        machine.code("su -s /bin/sh nobody -c 'curl -sf --unix-socket /run/lamplighter/http.sock http://x/health'") != 0
    )


def test_services_see_the_state_of_no_other_service(machine: Machine) -> None:
    def seen(service: str, folder: str) -> bool:
        user = "--setuid $(id -u lamplighter) --setgid $(id -g lamplighter)"
        inside = f"nsenter --target {machine.show(service, 'MainPID')} --mount {user}"
        return machine.code(f"{inside} ls /var/lib/{folder}/") == 0

    assert seen("lamplighter-gateway", "lamplighter") and seen("lamplighter-coap", "lamplighter-coap")
    assert not seen("lamplighter-gateway", "lamplighter-coap")
    assert not seen("lamplighter-coap", "lamplighter")


def test_lines_are_found_by_their_fields(machine: Machine) -> None:
    machine.code("curl --silent --insecure https://localhost:8443/health")
    gateway = machine("cat /var/lib/lamplighter/identity")
    assert "request_refused" in machine.journal(f"GATEWAY={gateway} REASON=invalid_request")
    assert "coap subscribed" in machine.journal("--unit=lamplighter-coap ROWS=0")
    assert machine.journal("--unit=lamplighter-gateway --priority=err") == ""


def test_no_connection_is_refused_by_restarts_and_kills(machine: Machine) -> None:
    connecting = machine.begin("python3 /root/connecting.py 20")
    machine("systemctl restart lamplighter-gateway")
    insert(machine, 2)
    machine("systemctl kill --signal=KILL lamplighter-gateway")
    insert(machine, 3)  # by a socket that nobody serves just now
    answered, refused = connecting.communicate(timeout=120)[0].split()
    assert int(answered) > 20 and refused == "0"
    machine.wait(lambda: all_is_well(machine), 60, "the services")
    assert rows(machine, NUMBERS) == ["1", "2", "3"]


def test_a_stopped_gateway_is_started_again(machine: Machine) -> None:
    before = machine.show("lamplighter-gateway", "MainPID")
    machine("systemctl kill --signal=STOP lamplighter-gateway")

    def another() -> bool:
        return machine.show("lamplighter-gateway", "MainPID") not in (before, "0") and all_is_well(machine)

    machine.wait(another, 60, "another process")
    assert "Watchdog timeout" in machine.journal("--unit=lamplighter-gateway --lines=100")
    assert rows(machine, NUMBERS) == ["1", "2", "3"]


@pytest.mark.parametrize("unit", ["lamplighter-coap", "lamplighter-gateway"])
def test_each_service_comes_back(machine: Machine, unit: str) -> None:
    before = machine.show(unit, "MainPID")
    machine(f"systemctl kill --signal=KILL {unit}")
    machine.wait(lambda: machine.show(unit, "MainPID") not in (before, "0") and all_is_well(machine), 60, unit)


def test_a_damaged_environment_leaves_no_service_out(machine: Machine) -> None:
    """As while a package is unpacked, or when the card cannot be read: it is a failure, and is tried again."""
    folder = "/usr/lib/lamplighter/lib/python3*/site-packages/lamplighter/gateway/service"
    machine(f"cd {folder} && mv enabled.py adapter_process.py /root")
    assert machine.code("systemctl restart lamplighter-coap") != 0
    machine.wait(lambda: int(machine.show("lamplighter-coap", "NRestarts")) > 1, 60, "another try")
    machine(f"cd /root && mv enabled.py adapter_process.py {folder}/")
    machine.wait(lambda: all_is_well(machine), 60, "the services")


def test_a_port_that_another_program_had_comes_back_in_both_families(machine: Machine) -> None:
    machine("systemctl stop lamplighter.target")
    machine.wait(lambda: machine.show("lamplighter-http.socket", "ActiveState") == "inactive", 60, "the end")
    listening = 'import signal, socket; one = socket.create_server(("0.0.0.0", 8443)); signal.pause()'
    machine(f"systemd-run --unit=other-program python3 -c '{listening}' 2>&1")
    machine.wait(lambda: ":20FB 00000000:0000 0A" in machine("cat /proc/net/tcp"), 60, "the other program")
    machine.code("systemctl start lamplighter.target")
    machine.wait(lambda: int(machine.show("lamplighter-gateway", "NRestarts")) > 1, 60, "another try")
    assert machine.show("lamplighter-http.socket", "ActiveState") == "failed"
    machine("systemctl stop other-program")
    for host in ("127.0.0.1", "[::1]"):
        asked = f"curl --silent --insecure --fail https://{host}:8443/ca.pem"
        machine.wait(lambda asked=asked: machine.code(asked) == 0, 60, host)  # type: ignore[misc]
    # If the gateway had begun before the port was free, it has opened it itself, and systemd does at its next start.
    machine("systemctl restart lamplighter-gateway")
    machine.wait(lambda: all_is_well(machine), 60, "the services")


def test_without_ipv6_everything_runs(machine: Machine) -> None:
    """As with `ipv6.disable=1` of the kernel, which then has no such sockets, and with its sysctl."""
    drop_in = "[Service]\nRestrictAddressFamilies=\nRestrictAddressFamilies=AF_INET AF_UNIX AF_NETLINK\n"
    services = ("lamplighter-gateway", "lamplighter-coap")
    machine("echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6")
    for service in services:
        machine.put(f"/etc/systemd/system/{service}.service.d/no-ipv6.conf", drop_in)
    machine(f"systemctl daemon-reload; systemctl restart {' '.join(services)}")
    machine.wait(lambda: all_is_well(machine), 60, "the services")
    machine.wait(lambda: "coap server listens" in own_lines(machine, "lamplighter-coap"), 60, "the CoAP server")
    assert machine.show("lamplighter-coap", "NRestarts") == "0"
    machine("curl --silent --insecure --fail https://127.0.0.1:8443/ca.pem")
    assert "cannot listen" not in machine("lamplighter check")
    # Without systemd's sockets, the gateway opens its own.
    machine("systemctl stop lamplighter.target")
    families = "RestrictAddressFamilies=AF_INET AF_UNIX AF_NETLINK"
    assert "cannot listen" not in machine(f"systemd-run --quiet --pipe --wait -p '{families}' lamplighter check")
    machine("cd /etc/systemd/system && rm lamplighter-*.service.d/no-ipv6.conf && rmdir lamplighter-coap.service.d")
    machine("echo 0 > /proc/sys/net/ipv6/conf/all/disable_ipv6")
    machine("systemctl daemon-reload; systemctl start lamplighter.target")
    machine.wait(lambda: all_is_well(machine), 60, "the services")


def own_lines(machine: Machine, unit: str) -> str:
    """Of the journal, those of the process that runs now."""
    return machine.journal(f"_PID={machine.show(unit, 'MainPID')}")


def test_a_gateway_that_systemd_may_not_start_is_named_with_the_command_that_changes_it(machine: Machine) -> None:
    machine("systemctl mask --now lamplighter-gateway 2>&1")
    for _ in range(2):  # at first the sockets are open
        begun = time.monotonic()
        told = machine("lamplighter status 2>&1; test $? -eq 3")
        assert "lamplighter-gateway.service is masked" in told
        assert time.monotonic() - begun < 30  # 3 s, on a machine with other work
    (cure,) = re.findall("`(systemctl unmask .*)`", told)
    machine(f"{cure} 2>&1")
    machine.wait(lambda: all_is_well(machine), 60, "the services")
    machine("systemctl stop lamplighter.target")
    # A call to an open socket would start the gateway.
    machine.wait(lambda: machine.show("lamplighter-http.socket", "ActiveState") == "inactive", 60, "the end")
    told = machine("lamplighter status 2>&1; test $? -eq 3")
    (cure,) = re.findall("`(systemctl start .*)` starts it", told)
    machine(f"{cure} && systemctl start lamplighter.target")
    machine.wait(lambda: all_is_well(machine), 60, "the services")
    assert rows(machine, NUMBERS) == ["1", "2", "3"]


def test_an_adapter_that_is_not_wanted_any_more_ends(machine: Machine) -> None:
    before = (machine.root / SETTINGS[1:]).read_text()
    machine.put(SETTINGS, before + "[coap]\nenabled = false\n")
    machine("systemctl reload lamplighter-coap")
    machine.wait(lambda: machine.show("lamplighter-coap", "Result") == "exec-condition", 60, "the end of the adapter")
    assert machine.show("lamplighter-coap", "ActiveState") == "inactive"
    assert machine("systemctl --failed --no-legend") == ""
    machine.put(SETTINGS, before)
    machine("systemctl reload-or-restart lamplighter-coap")
    machine.wait(lambda: all_is_well(machine), 60, "the services")


def test_a_reload_applies_what_is_good_and_refuses_what_is_not(machine: Machine) -> None:
    before = (machine.root / SETTINGS[1:]).read_text()
    process = machine.show("lamplighter-gateway", "MainPID")
    # With these it would not start again. Adapters do not see the data folder, and leave its files to the gateway.
    for mistake, of_adapters in (
        ('local_users = ["nosuch"]', 1),
        ('certificate_file = "/var/lib/lamplighter/x.pem"\nkey_file = "/var/lib/lamplighter/x.pem"', 0),
    ):
        machine.put(SETTINGS, before.replace("\nenabled = true\n", f"\nenabled = true\n{mistake}\n", 1))
        assert machine.code("systemctl reload lamplighter-gateway") != 0
        assert mistake.partition(" ")[0] in machine.journal("--unit=lamplighter-gateway --lines=20")
        told = machine.code("systemctl reload lamplighter-coap")
        assert min(told, 1) == of_adapters, machine.journal("--unit=lamplighter-coap --lines=20")
    machine.put(SETTINGS, before + "[limits]\nevaluation_ms_max = 0\n")
    assert machine.code("systemctl reload lamplighter-gateway") != 0
    assert "limits.evaluation_ms_max" in machine.journal("--unit=lamplighter-gateway --lines=20")
    machine.put(SETTINGS, before + "[limits]\nevaluation_ms_max = 400\n[log]\nsegment_s_max = 60\n")
    machine("systemctl reload lamplighter-gateway")
    machine.wait(lambda: machine.journal("APPLIED=limits.evaluation_ms_max") != "", 10, "the change")
    assert "need a restart" in machine.journal("KEYS=log.segment_s_max")
    machine.put(SETTINGS, before)
    machine("systemctl reload lamplighter-gateway")
    assert machine.show("lamplighter-gateway", "MainPID") == process


def test_readings_come_with_a_password_from_the_credentials(machine: Machine) -> None:
    machine("mosquitto_passwd -b -c /etc/mosquitto/passwords gateway secret; chown mosquitto /etc/mosquitto/passwords")
    machine.put(
        "/etc/mosquitto/conf.d/test.conf",
        "allow_anonymous false\npassword_file /etc/mosquitto/passwords\nlistener 1883 127.0.0.1\n",
    )
    machine("systemctl restart mosquitto")
    machine("echo secret | install -m 600 /dev/stdin /etc/credstore/lamplighter.mqtt-password")
    settings = (machine.root / SETTINGS[1:]).read_text()
    machine.put(
        SETTINGS, settings.replace('host = ""', 'host = "127.0.0.1"').replace('username = ""', 'username = "gateway"')
    )
    assert machine.code("systemctl reload lamplighter-mqtt") != 0, "it was left out, so there is nothing to reload"
    machine("systemctl reload-or-restart lamplighter-gateway lamplighter-mqtt lamplighter-coap")
    machine.wait(lambda: "connected" in machine.show("lamplighter-mqtt", "StatusText"), 30, "the broker's connection")
    machine("mosquitto_pub -h 127.0.0.1 -u gateway -P secret -q 1 -t street/1/presence -m true")
    asked = "SELECT ?o { ?s <http://www.w3.org/ns/sosa/hasSimpleResult> ?o }"
    machine.wait(lambda: rows(machine, asked) == ["true"], 20, "the reading")
    assert machine.code("runuser -u lamplighter -- cat /etc/credstore/lamplighter.mqtt-password") != 0


def test_the_log_is_shipped_by_its_timer(machine: Machine) -> None:
    settings = (machine.root / SETTINGS[1:]).read_text()
    folder = "/var/lib/lamplighter/shipped"
    machine.put(SETTINGS, settings.replace('destination = ""', f'destination = "{folder}"'))
    machine(f"install -d -o lamplighter {folder}")
    machine("systemctl start lamplighter-sync")
    assert machine.show("lamplighter-sync", "Result") == "success"
    assert machine.show("lamplighter-sync.timer", "ActiveState") == "active"


def test_an_upgrade_keeps_what_was_edited(machine: Machine, package: Path) -> None:
    def with_news(tree: Path) -> None:
        for name in ("lamplighter.toml", "mapping/street.toml"):
            file = tree / BROUGHT / name
            file.write_text(file.read_text() + "# new\n")
        with_bytecode(tree)

    rebuild(package, machine.root / "root/next.deb", "99", with_news)
    machine("systemctl disable --now lamplighter-coap 2>&1; systemctl stop lamplighter-sync.timer")
    machine("chmod 755 /etc/credstore; chmod 644 /etc/credstore/lamplighter.mqtt-password")
    process = machine.show("lamplighter-gateway", "MainPID")
    connecting = machine.begin("python3 /root/connecting.py 20")
    machine("dpkg --install /root/next.deb < /dev/null")
    assert connecting.communicate(timeout=120)[0].split()[1] == "0"
    assert 'host = "127.0.0.1"' in (machine.root / SETTINGS[1:]).read_text()
    assert (machine.root / "etc/lamplighter/mapping/street.toml").read_text().endswith("# new\n")
    assert machine.show("lamplighter-gateway", "MainPID") not in (process, "0")
    assert machine.show("lamplighter-coap", "ActiveState") == "inactive", "what was disabled stays so"
    assert machine.show("lamplighter-sync.timer", "ActiveState") == "inactive", "what was stopped, too"
    assert machine("stat --format=%a /etc/credstore /etc/credstore/lamplighter.mqtt-password") == "700\n600"
    assert rows(machine, NUMBERS) == ["1", "2", "3"]


def test_removing_keeps_the_data_and_purging_does_not(machine: Machine) -> None:
    run("cp", "-a", str(machine.root / "usr/lib/lamplighter"), str(machine.root / "opt/environment"))
    machine("dpkg --remove lamplighter 2>&1")
    assert (machine.root / "var/lib/lamplighter/log").is_dir()
    machine("dpkg --install /root/lamplighter.deb < /dev/null 2>&1")
    machine.wait(lambda: machine.code("systemctl is-active --quiet lamplighter-gateway") == 0, 60, "the gateway")
    assert rows(machine, NUMBERS) == ["1", "2", "3"]
    machine("dpkg --purge lamplighter 2>&1")
    for path in ("var/lib/lamplighter", "etc/lamplighter", "usr/lib/lamplighter", "run/lamplighter"):
        assert not (machine.root / path).exists(), path
    assert machine.code("getent passwd lamplighter") != 0
    assert machine("find /etc/systemd /usr/lib/systemd -name 'lamplighter*' -not -name '*.service.d'") == ""


def test_install_does_the_same_from_an_environment(machine: Machine) -> None:
    share = machine.root / "opt/environment/share/lamplighter"
    share.mkdir(parents=True)
    for name in ("systemd", "mapping", "apps", "lamplighter.toml"):
        run("cp", "-r", str(ROOT / name), str(share / name))
    said = machine(f"{INSTALLER} install")
    assert "copy the environment /opt/environment to /usr/lib/lamplighter" in said
    machine.wait(lambda: all_is_well(machine), 60, "the services")
    insert(machine, 4)
    process = machine.show("lamplighter-gateway", "MainPID")
    machine("systemctl disable --now lamplighter-coap 2>&1; systemctl stop lamplighter-sync.timer")
    assert "restart running" not in machine(f"{INSTALLER} install")
    assert machine.show("lamplighter-gateway", "MainPID") == process
    for unit in ("lamplighter-coap.service", "lamplighter-sync.timer"):
        assert machine.show(unit, "ActiveState") == "inactive", unit
    assert machine.code("dpkg --install /root/lamplighter.deb") != 0, "its units would stay hidden by those in /etc"
    assert machine.show("lamplighter-gateway", "MainPID") == process
    assert rows(machine, NUMBERS) == ["4"]
    machine(f"{INSTALLER} uninstall --purge --yes")
    assert machine("systemctl list-units --all --no-legend 'lamplighter*'") == ""
    assert not (machine.root / "var/lib/lamplighter").exists()


def test_a_package_that_was_removed_takes_nothing_from_another_installation(machine: Machine) -> None:
    machine("dpkg --purge lamplighter 2>&1; dpkg --install /root/lamplighter.deb && dpkg --remove lamplighter")
    machine(f"{INSTALLER} install")
    machine.wait(lambda: all_is_well(machine), 60, "the services")
    insert(machine, 5)
    unit = "/etc/systemd/system/lamplighter-mqtt.service"
    machine.put(unit, "old")
    machine(f"{INSTALLER} install")
    assert (machine.root / unit[1:]).read_bytes() == (UNITS / "lamplighter-mqtt.service").read_bytes()
    assert "its data stay" in machine("dpkg --purge lamplighter 2>&1")
    assert all_is_well(machine)
    assert machine("systemctl is-enabled lamplighter.target lamplighter-gateway") == "enabled\nenabled"
    machine(f"{INSTALLER} install")
    machine.wait(lambda: all_is_well(machine), 60, "the services")
    assert rows(machine, NUMBERS) == ["5"]
    machine(f"{INSTALLER} uninstall --purge --yes")


def test_the_machine_is_as_it_was_before(machine: Machine) -> None:
    left = subprocess.run(
        [
            "find",
            str(machine.root),
            "-xdev",
            "-name",
            "*lamplighter*",
            "-not",
            "-path",
            "*/root/*",
            "-not",
            "-path",
            "*/dpkg/*",
        ],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines()
    own = ("/etc/systemd/system/lamplighter-gateway.service.d", "/opt/environment", "/var/log", "/var/tmp", "/tmp")
    assert [path for path in left if not path.removeprefix(str(machine.root)).startswith(own)] == []
