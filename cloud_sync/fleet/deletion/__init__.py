"""Deletion of a gateway's or a subject's data, and retention (docs/fleet.md).

selection: what is removed from each kind of file; subject: the same for one IRI; cuts: up to which record of each
gateway the data is too old; rewriting: tables without the removed rows; landed: landed files and the
landing log; notified: dead letters and delivered files; pushed: orders for gateways, and rows that they sent ahead of
segments; removal: all of it in a crash-safe order, with the audit record; commands: `forget` and `retain`.
"""
