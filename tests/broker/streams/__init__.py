"""Queues in libkestrel's format."""
