"""The health of the gateway as a list of components, each ok, degraded or failed, with reason and cure.

::

    own, peers, machine, devices, applications ─▶ HealthModel: since, log lines, worst first
                                             └─▶ /health, /figures, /ready, /metrics, lamplighter status, STATUS=

components: one component; reports: what parts of the process report until the next start; own: engine, log, disk,
clock, sync, orders and security; peers: MQTT brokers and the CoAP adapter; machine: power, temperature, card, and what
the appliance reports; devices: devices that are not ok; applications: by the outcomes of their reactions; model: all of
them, with the time of the last change.
"""
