"""Packing, memory, reading behind."""
