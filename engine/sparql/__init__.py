"""SPARQL text -> what the engine needs to know of it.

lexer, grammar: tokens and syntax; algebra: trees of them; requests: one checked request; skeletons: a text without its
constants; clauses: VALUES, FROM and USING put into a text; forced_bindings, clock_function: what is put in place of
variables and of the clock; limits: how long and deep a text may be; text_cache: the last used texts.
"""
