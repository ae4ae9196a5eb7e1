"""Evaluation in processes that can be killed.

ad_hoc: queries; trials: whether a request stays within its limits; large_updates, rdf_bodies: parsing of long texts;
fresh_nodes: blank nodes of what was parsed there.
"""
