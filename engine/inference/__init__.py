"""Inference: quad delta -> quad delta with the inferred triples that it adds and removes (a core of OWL 2 RL).

::

    quad delta of a request ─▶ Inference.complete ─▶ the same, with the changes of the inferred graphs
                                   └─▶ Closure, one for each graph: retract, derive again, derive

sources: `Sources`, which graphs have inferred triples, and their names; rules: one step of deriving; facts: the triples
of a graph, its ontologies and its inferred graph; closure: keeps one inferred graph; inference: all of them.

It is off unless `Engine.infer` is called. Then nothing of this package is imported.
"""
