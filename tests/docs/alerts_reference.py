"""The table of alert rules in docs/monitor.md, made from docs/monitoring/alerts.yml."""

from __future__ import annotations

import re
from typing import Any

from tests.support.places import ROOT
from tests.support.plain_yaml import read_yaml

RULES = ROOT / "docs" / "monitoring" / "alerts.yml"


def rules() -> list[dict[str, Any]]:
    return [rule for group in read_yaml(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts_table() -> str:
    """A Markdown table of the rules."""
    lines = ["|alert|severity|condition|", "|---|---|---|"]
    for rule in rules():
        held = f" for {rule['for']}" if "for" in rule else ""
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", rule["alert"].removeprefix("Lamplighter")).lower()
        lines.append(f"|{name}|{rule['labels']['severity']}|`{rule['expr']}`{held}|")
    return "\n".join(lines) + "\n"
