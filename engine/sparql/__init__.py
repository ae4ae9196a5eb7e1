"""SPARQL text -> checked request -> algebra.

limits: length and depth, checked before parsing; lexer: tokens; cursor, paths, triples, grammar: tokens -> algebra;
algebra: the tree; scopes: variables that are used across scopes; wide_joins:
long runs of triples in parts; exists_variables: those of an EXISTS that its group
does not have; projections: columns of SELECT *, aliases in HAVING; requests: one checked request; syntax_errors: what
is wrong with one; skeletons: a text without its constants; plain_updates: updates
of usual spelling without the parser; text_cache: bounded cache of texts; clauses: VALUES, FROM
and USING inserted into a text; forced_bindings, clock_function: values in place of variables and of the clock;
clock_conditions: comparisons with the clock.
"""
