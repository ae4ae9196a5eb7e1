"""Devices: what discovery says of them, how they are stored, and the vocabulary of what they observe and do.

device: the records of a proposed device, with its rule tables; draft: makes such a record and checks each part of it;
stored: checks a record that was read from the dataset; kinds: the properties of `ontology/kinds.ttl`; availability:
whether they are online, by their topics; intervals: how often they report, and which are silent for too long; registry:
proposals and decisions as SPARQL updates; registry_feed: keeps them in the dataset while an adapter runs; pauses: how
often a device is changed; problems: what was not used, as triples; problem_writer: keeps them in the dataset; dropped:
the same in the log; desired: the contract "desired state -> device" and its updates; output: keeps actuators in their
desired states, with sender (what an adapter does for it), actuator (what is known of one), queried (states by the query
of a rule), lamps (actuators that are switched by one command), delivery (attempts) and actuation_writer (their
records); pace: how often loops may send.
The adapters and the command ``lamplighter devices`` share this folder.
"""
