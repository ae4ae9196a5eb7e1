"""Fleet subscriptions: SPARQL queries over the events of all gateways, and what is sent when one matches.

records: what a subscription and its sinks consist of; registry: the records of a lake; index: which subscriptions an
event may match; matching: events and subscriptions -> matches; segment_order: which segments are next; matcher: keeps
the table of matches; commands, match_command: `lamplighter-fleet subscriptions`.
"""
