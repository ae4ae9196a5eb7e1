"""SPARQL compiled to columns of Spark.

supported: query text -> checked query; expression_tree: tokens of an expression -> tree. Both need no Spark.
"""
