"""The HTTP gate: SPARQL 1.1 Protocol, Graph Store HTTP Protocol, and what operators ask for."""
