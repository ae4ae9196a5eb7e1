"""The commands of `lamplighter`.

command_table: which module declares a command, and what commands return; options: what commands share, settings file
and data folder; endpoint: `--url`, and how commands ask a gateway; console: tables, JSON, confirmation, progress bars.

bundle_command: bundle; check_command: check; status_command: status; listing_commands: subscriptions, timers;
load_command: load; backup_commands: backup, restore; commands: verify, log, new-epoch; client_commands: query,
update, subscribe, register; security_commands: clients, keys; mapping_commands: mapping test, mapping check;
devices_commands: devices; devices_coap: devices discover, devices key; devices_unread: devices unread;
readings_commands: readings; explain_command: explain; history_command: history, logbook; mcp_command: mcp;
notifications_command: notifications; try_command: try; init: init, with init_options; templates: the applications that init writes; install: install,
uninstall; command_tree: completion and manual pages; process_commands: run, mqtt, coap, http-devices, modbus, demo;
sync_command: sync.
"""
