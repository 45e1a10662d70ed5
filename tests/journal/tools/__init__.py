"""Verifying and converting spools."""
