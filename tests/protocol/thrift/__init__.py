"""Kestrel's thrift service."""
