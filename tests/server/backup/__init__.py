"""Backups of real servers, on real files and on an object store of loopback."""
