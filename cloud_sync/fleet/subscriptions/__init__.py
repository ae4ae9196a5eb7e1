"""Fleet subscriptions: SPARQL queries over the events of all gateways, and what is sent when one matches.

records: what a subscription and its sinks consist of; registry: the records of a lake; commands:
`lamplighter-fleet subscriptions`.
"""
