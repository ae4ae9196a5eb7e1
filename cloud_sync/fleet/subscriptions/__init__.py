"""Fleet subscriptions: SPARQL queries over the events of all gateways, and what is sent when one matches.

records: what a subscription and its sinks consist of; registry: the records of a lake; index: which subscriptions an
event may match; matching: events and subscriptions -> matches, on Spark; single_index, single_matching: the same for
few records, in the driver; segment_order: which segments are next; matcher: keeps the table of matches; pushdown: which
queries a gateway can answer; planner: where a subscription is evaluated; push: the orders to the gateways; early_rows,
early_objects: what they send ahead; commands, match_command, push_command, explain: the commands.
"""
