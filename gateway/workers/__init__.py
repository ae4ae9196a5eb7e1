"""Evaluation in processes that can be killed.

ad_hoc: queries; dry_runs: dry runs of what the engine is about to evaluate by the store; solutions: what they found;
recent_changes: whether that still holds; large_updates: long update texts; rdf_bodies: RDF documents; fresh_nodes: new
blank nodes without collisions between processes; resources, resource_page: descriptions of IRIs, as RDF and HTML.
"""
