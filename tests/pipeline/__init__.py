"""The pipeline: its readers against replay, and both sources in a real Spark on this machine."""
