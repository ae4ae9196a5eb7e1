"""The health of the gateway as a list of components, each ok, degraded or failed, with reason and cure.

::

    own, others, machine, devices ─▶ HealthModel: since, log lines, worst first
                                             └─▶ /health, /figures, /ready, /metrics, lamplighter status, STATUS=

components: one component, and what parts of the process report of theirs until the next start; own: engine, log, disk,
clock, sync, orders and security; others: applications by the outcomes of their reactions, MQTT brokers and the other
adapters; machine: power, temperature, card, and what the appliance reports; devices: devices that are not ok; model:
all of them, with the time of the last change.
"""
