"""Says at the end of a run how many of its subscriptions were kept up to date in which way."""

import pytest

from tests.w3c import suite


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if suite.CLASS_COUNTS:
        counts = ", ".join(f"{name} {count}" for name, count in suite.CLASS_COUNTS.most_common())
        terminalreporter.write_line(f"W3C subscriptions by class: {counts} (W3C_SEED={suite.SEED})")
