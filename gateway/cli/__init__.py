"""The commands of `lamplighter`.

bundle_command: bundle; check_command: check; status_command: status; listing_commands: subscriptions, timers;
load_command: load; backup_commands: backup, restore; commands: verify, log; client_commands: query, update, subscribe,
register; security_commands: clients, keys; mapping_commands: mapping test, mapping check; devices_commands: devices;
devices_key: devices key; devices_discover: devices discover; readings_commands: readings; explain_command: explain;
mcp_command: mcp; notifications_command: notifications; running_dataset: how devices and readings ask the gateway; init:
init; templates: the applications that init writes; install: install, uninstall; confirmation: the question before a
destructive command; progress: progress bars; command_tree: completion and manual pages; reaching: `--url`; exit_codes:
what commands return; config_file: the settings file and the data folder that options name; parts: tables, and commands
within commands; process_commands: run, mqtt, coap, http-devices, modbus, demo; sync_command: sync; command_table: which
module declares a command.
"""
