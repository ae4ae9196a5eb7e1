"""Quad delta -> changed rows of each subscription.

subscriptions: all subscriptions by number; registry: their shapes and units, filed in the LUTT; following: one commit,
from its delta to the changed rows; collectors: what matchers gather while it is matched.
spellings: query text -> spelling and constants; shapes, units: queries that differ only in constants; unit_numbers,
spuids: numbers and names of subscriptions.
lutt: the shapes that a quad can touch; cts: the index of quads; spu: re-evaluation by the store.
analysis: the class of a query, and how a change passes through it; plan: a query compiled to functions; codegen,
joins, source_text: write their Python code, for algebra, joins of triple patterns, and lines; expressions, aggregates:
values as the store computes them; costs: bounds on an expression.
"""
