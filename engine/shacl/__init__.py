"""SHACL: quad delta -> quad delta with the violations that it makes and ends, or a refusal (W3C, SHACL Core).

::

    shapes (triples) ─ reading ─▶ ConstraintShape ─ compiling ─▶ functions over the CTS, triggers by predicate
                                                                     │
    quad delta ─▶ triggers ─▶ focus nodes that it concerns ─▶ checked in the state after it ─▶ delta, or refusal

model: the terms and the shapes; sources: where they come from; reading: triples -> shapes; paths, data: walks
over the data graph in the CTS; datatypes, patterns: texts of literals; components: one function for each constraint
component; compiling: shapes -> functions and triggers; finding: the nodes that quads concern, and their violations;
results: a violation as a sentence, as quads and in a report; validation: all of it, for each delta.

It is off unless `Engine.validate` is called. Then nothing of this package is imported.
"""
