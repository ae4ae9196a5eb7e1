"""Quad delta -> changed rows of each subscription.

subscriptions: all subscriptions by number; signatures: the quads on which a text can depend; registry: their shapes
and units, filed in the LUTT; following: one commit, from its delta to the changed rows; collectors: what matchers
gather while it is matched; prices: what that takes.
query_texts: text -> parsed query and constants; shapes: queries that differ only in constants, which query_constants
joins with; subscription_numbers: numbers and names of subscriptions.
lutt: the shapes that a quad can touch; cts, quad_tables: the index of quads, and its tables; filling: many quads are
indexed in portions; reachability: paths of any
length over it; spu: re-evaluation by the store; takeovers: plans that gave up, and when the store returns a query.
analysis: the class of a query, and how a change passes through it; exists, paths: which EXISTS, and which paths of any
length, a plan can follow;
plan: a query compiled to functions; codegen, joins, path_joins, triple_joins, source_text: write their Python code, for
algebra, joins of triple patterns, with paths and with triple terms, and lines; expressions, aggregates, sums: values as
the store computes them; costs: bounds on an expression; ordering, values: ORDER BY with LIMIT, and the order of terms;
construction: the triples of CONSTRUCT.
clock_patterns: comparisons with the clock as triple patterns; boundaries: the instant at which one changes;
clock_index: which of them hold, when that changes, and the changes of a commit to them.
"""
