"""Journals in Kestrel's format."""
