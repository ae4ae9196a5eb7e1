"""The fleet on one page for people: `lamplighter-fleet report`."""

from lamplighter.cloud_sync.fleet.report.commands import add_commands, write_report

__all__ = ["add_commands", "write_report"]
