"""Readings -> SPARQL updates, shared by the adapters. All but commits is pure.

readings: streams and readings; descriptions: what no reading changes; latest: one live observation per stream; event:
each reading in a named graph of its own; repeats: which readings are dropped; lifetimes: values that end; failures:
exceptions that nobody expected; commits: which source a stream belongs to, batches, readings -> durable updates;
last_messages: the last message of each place; unread: those of places that no rule reads.
"""
