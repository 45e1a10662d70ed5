"""The protocol of workq, a job server. `parser` makes requests of bytes, `commands` of lines; `requests` and
`job_requests` are those requests, `replies` and `job_texts` the replies. What a command does to a job may not enter.
"""
