"""Service: HTTP API, job supervisor, registry, policy server and dashboard."""
