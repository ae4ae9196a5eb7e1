"""`lamplighter subscriptions` without a gateway."""

from __future__ import annotations

from pathlib import Path

from tests.support.brokers import free_port
from tests.support.commands import command


def test_the_command_says_when_no_gateway_answers(tmp_path: Path) -> None:
    config = tmp_path / "lamplighter.toml"
    config.write_text(f"[http]\nport = {free_port()}\n")
    done = command("subscriptions", "--config", config)
    assert done.returncode == 3
    assert done.stderr.startswith("lamplighter: no gateway answers at http://127.0.0.1:")
    assert done.stderr.count("\n") == 1
