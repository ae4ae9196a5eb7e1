"""What records say besides the dataset: each part follows records.

delayed: delayed updates and timers; applications: reactions; request_ids: repeated requests; resumption: subscriptions
that outlive connections; quotas: what one client may use.
"""
