"""Journals in libkestrel's format."""
