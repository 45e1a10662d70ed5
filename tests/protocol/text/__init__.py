"""Kestrel's text protocol."""
