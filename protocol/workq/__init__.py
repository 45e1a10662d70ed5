"""The protocol of workq, a server of jobs. What a command does to a job may not enter."""
