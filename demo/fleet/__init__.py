"""`lamplighter-fleet demo`: a fleet from its sensors to the report, in three minutes, that checks what it says."""

from lamplighter.demo.fleet.commands import add_commands

__all__ = ["add_commands"]
