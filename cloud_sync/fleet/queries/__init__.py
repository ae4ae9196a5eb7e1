"""Ad-hoc SPARQL over the records of all gateways in batch: `lamplighter-fleet query`.

fleet_data: the state or the history of a fleet as quads; answers: rows as a table, JSON or CSV; command: the command.
"""
