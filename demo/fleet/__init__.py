"""`lamplighter-fleet demo`: a fleet from its sensors to the report, checked against ground truth.

simulate: writes what a fleet would ship; simulated_gateway: the records of one gateway; simulated_machine: its clock,
reboots and log; truth: ground truth, which the pipeline never reads; gateways: real gateways as processes; store: a
real S3 server; commands: the steps; subscriptions: a fleet subscription; checks: the lake and the results compared with
ground truth.
"""

from lamplighter.demo.fleet.commands import add_commands

__all__ = ["add_commands"]
