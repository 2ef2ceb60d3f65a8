"""Client quotas: how much users and client ids may produce, fetch, and ask for (KIP-13)."""
