"""Measurements of this server alone."""
