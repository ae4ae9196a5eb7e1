"""What the store (Oxigraph 0.5.13) gets wrong in the suites of SPARQL 1.2 and RDF 1.2.

Each entry is a test that fails. When a release of the store passes one, the tests say so, and it leaves this list.
"""

KNOWN_FAILURES = {
    (
        "sparql12/grouping/group01",
        "query",
    ): "groups integers by value; the store keeps 001 as 1 (docs/internals/decisions.md)",
    ("sparql12/grouping/select-variable-reuse", "query"): "an expression of SELECT with a variable that SELECT assigns",
    ("sparql12/syntax-triple-terms-negative/tripleterm-subject-03", "syntax"): "a triple term as a subject in BIND",
    ("sparql12/syntax-triple-terms-negative/tripleterm-subject-06", "syntax"): "a literal as a subject in BIND",
    ("sparql12/syntax/nested-aggregate-functions", "syntax"): "an aggregate within an aggregate",
    ("rdf12/rdf-xml/eval/rdf12-xml-an-13", "document"): "an XML literal with namespaces that it does not use",
    ("rdf12/rdf-xml/eval/rdf12-xml-an-14", "document"): "an XML literal with namespaces that it does not use",
}
"""(name, kind) -> what is wrong. kind: query, syntax, or document."""
