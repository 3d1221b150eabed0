"""Training from scratch: one policy on many environments in one process, at high throughput."""
