"""Crowds: many queues, children, open reads, waiters and clients at once. Judged by what arrives, never by time."""
