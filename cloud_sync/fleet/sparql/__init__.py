"""SPARQL compiled to columns of Spark."""
