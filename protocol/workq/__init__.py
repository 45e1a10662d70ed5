"""The protocol of workq, a job server. What a command does to a job may not enter."""
