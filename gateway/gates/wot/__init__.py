"""The Web of Things (W3C): Thing Descriptions of what the dataset has, a directory of them, and their properties and
actions over HTTP. On with ``enabled`` in ``[wot]``.

api: paths and handlers; things: what the dataset says about things; description: Thing Descriptions; values: terms and
JSON values; observing: a property as a stream; search: SPARQL over descriptions; submitted: descriptions that clients
send, as mapping rules; forms: their forms; forms_modbus: those of Modbus; registrations: their adoption; problems:
refusals.
"""

from lamplighter.gateway.gates.wot.api import WebOfThings

__all__ = ["WebOfThings"]
