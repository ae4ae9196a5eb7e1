"""What docs/monitor.md shows for Prometheus: the client, the token and the scrape work at a gateway in secure mode."""

from __future__ import annotations

import base64
import json
import re
import shlex
import urllib.parse
import urllib.request
from pathlib import Path

from tests.support.commands import command
from tests.support.places import ROOT
from tests.support.plain_yaml import read_yaml
from tests.support.secure_gateway import SecureGateway

PAGE = (ROOT / "docs" / "monitor.md").read_text()


def test_prometheus_gets_a_token_and_the_metrics(tmp_path: Path) -> None:
    """Requests as Prometheus sends them with `oauth2`: a form, and the secret by HTTP Basic."""
    [register] = re.findall(r"^\$ sudo lamplighter (clients add .*)$", PAGE, re.M)
    [block] = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    [scrape] = read_yaml(block)["scrape_configs"]
    assert scrape["scheme"] == "https" and scrape["static_configs"] == [{"targets": ["gateway.example:8443"]}]
    with SecureGateway(tmp_path) as gateway:
        printed = command(*shlex.split(register), "--config", gateway.toml, check=True, cwd=tmp_path).stdout
        [secret] = re.findall(r"^client_secret +(\S+)$", printed, re.M)

        def answer(url: str, authorization: str, form: bytes | None = None) -> bytes:
            url = url.replace("gateway.example:8443", f"localhost:{gateway.port}")
            request = urllib.request.Request(url, form, {"Authorization": authorization})
            with urllib.request.urlopen(request, context=gateway.tls) as response:
                return bytes(response.read())

        basic = base64.b64encode(f"{scrape['oauth2']['client_id']}:{secret}".encode()).decode()
        form = urllib.parse.urlencode({"grant_type": "client_credentials"}).encode()
        token = json.loads(answer(scrape["oauth2"]["token_url"], f"Basic {basic}", form))["access_token"]
        assert b"lamplighter_healthy 1.0" in answer("https://gateway.example:8443/metrics", f"Bearer {token}")
