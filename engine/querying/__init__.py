"""Queries whose cost is bounded before they run, so that they need no process of their own.

small_queries: query text -> answer, or None for a query that may be costly; query_reads: query text -> what the queries
of its skeleton read; excerpts: gathers the few quads that one query can use.
"""
