"""Ad-hoc SPARQL over the records of all gateways in batch: `lamplighter-fleet query`.

fleet_data: the state or the history of a fleet as quads; star_plan: which patterns are stars, and why; command: the
command, which writes rows as a table, JSON or CSV.
"""
