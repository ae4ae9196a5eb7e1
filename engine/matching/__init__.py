"""Quad delta -> changed rows of each subscription.

subscriptions: all of them, by shape; shapes, units: queries that differ in constants only; lutt: which of them a quad
concerns; cts: the index of triples they read; plan: a query compiled to loops; codegen: writes these loops; analysis:
what is known of a tree before; expressions, aggregates, costs: values, and what they may cost; spu: a query that the
store evaluates again; spuids: names of subscriptions.
"""
