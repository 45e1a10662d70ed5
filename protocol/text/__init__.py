"""Kestrel's text protocol. What a command does to a queue may not enter."""
