"""State beside the dataset, rebuilt from the records of the change log.

knowledge: follows each record for all of it, and has the instant of comparisons with the clock; delayed: delayed
updates; applications: triggers and reactions; request_ids: answers to retries; resumption:
subscriptions that outlive their connections. Not in the log: stored_applications,
those that were put; outcomes, how reactions end; quotas, limits of one client;
client_budgets, bytes that wait for one client; messages, clients that have messages of devices.
"""
