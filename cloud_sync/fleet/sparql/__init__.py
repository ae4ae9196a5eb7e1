"""SPARQL compiled to columns of Spark.

expression_tree: tokens of an expression -> tree, without Spark.
"""
