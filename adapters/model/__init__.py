"""Readings -> SPARQL updates. Pure, and shared by the adapters.

readings: streams and readings; descriptions: what no reading changes; latest: one live observation per stream; event:
each reading in a named graph of its own; repeats: which readings are dropped.
"""
