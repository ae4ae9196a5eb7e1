"""Who may do what over the network: certificates, registered clients, tokens, permissions, rate limits, audit lines."""
