"""The gateway as a service.

configuration: what is read before a start; process: builds the processes from their parts; adapter_process: one adapter
as a process; supervision: readiness and watchdog under systemd, quotas without effect; reload: settings that change
while it runs; enabled: which processes the settings ask for; units: those of systemd; preflight: what a start meets on
the machine; unit_view: what systemd lets a service see; port_check, data_check: ports and data folder of a start;
settings_check: the check of a running gateway; rule_faults: queries of mapping rules; shape_files: SHACL shapes;
system_update: update bundles of the image.
"""
