"""Bytes made up for parsers and journal readers."""
