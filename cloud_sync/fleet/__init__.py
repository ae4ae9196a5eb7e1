"""The change logs of a fleet of gateways as tables, and what can be learnt from them; see docs/fleet.md."""
