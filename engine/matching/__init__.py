"""Quad delta -> changed rows of each subscription.

subscriptions: follows a commit for all of them; shapes, units: queries that differ only in constants; lutt: the shapes
that a quad can touch; cts: the index of quads; analysis: the class of a query, and how a change passes through it;
plan: a query compiled to functions; codegen: writes their Python code; expressions, aggregates: values as the store
computes them; costs: bounds on an expression; spu: re-evaluation by the store; spuids: names of subscriptions.
"""
