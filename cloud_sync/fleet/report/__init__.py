"""Report: the results of all jobs as one HTML page.

content: the rows that the page shows; plots: SVG; page: content -> HTML; commands: `lamplighter-fleet report`.
"""

from lamplighter.cloud_sync.fleet.report.commands import add_commands, write_report

__all__ = ["add_commands", "write_report"]
