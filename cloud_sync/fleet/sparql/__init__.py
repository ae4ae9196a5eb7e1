"""SPARQL compiled to columns of Spark.

supported: query text -> checked query; expression_tree: tokens of an expression -> tree. Both need no Spark.
expressions: tree -> column; values: terms, strings, booleans and numbers as columns, and `let`; numbers, comparisons,
moments, strings: the operators and functions. osma: the plan of a subscription, the whole event in one row;
nested: the same for any query; csma: one join per pattern or star; stars:
patterns with one subject as a property table; event_store: one event at a time, in a store, by query_text (both without
Spark). modifiers (no Spark) and modified: DISTINCT, ORDER BY, LIMIT and aggregates of queries in batch.
"""
