"""The generated blocks of docs/monitor.md. `python -m tests.docs.monitor_blocks` writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tests.docs.alerts_reference import alerts_table
from tests.docs.events_reference import events_table
from tests.docs.metrics_reference import metrics_table
from tests.support.places import ROOT

PAGE = ROOT / "docs" / "monitor.md"
BLOCKS: Mapping[str, Callable[[], str]] = {"alerts": alerts_table, "metrics": metrics_table, "events": events_table}


def filled(text: str) -> str:
    """The page with current tables. Raises ValueError unless each block is there once."""
    for name, table in BLOCKS.items():
        marks = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.S)
        if len(marks.findall(text)) != 1:
            raise ValueError(f"{PAGE.name} needs one block `<!-- generated: {name} -->` ... `<!-- end -->`")
        content = table()
        text = marks.sub(lambda found, content=content: f"{found[1]}\n{content}\n{found[2]}", text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
