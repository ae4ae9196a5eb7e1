"""The dataset.

quad_store: quads in memory or on disk (Oxigraph); renewal: replaces an aged native store while it is in use; audit:
compares index and store.
"""
