"""The command log of workq: all jobs of a server in one sequence of records.

The log is a folder of segments (`000000001.log`, …), of which the newest is appended to. Each change of a job is one
record with its time and a checksum. A segment is never changed in place: cleaning writes a successor (`….log.rw`) with
the records that are still needed and renames it over the segment, or removes a segment without any; so the numbers may
have holes. A file with another header is set aside as `….log.damaged`. layout.py has the layout of records, encoder.py
and job_records.py write them, records.py reads them. segments.py reads a segment, also past damage. log.py appends,
cleaning.py rewrites, recovery.py recovers, dump.py shows records to people, trace.py follows single jobs. The jobs
themselves are in queues/jobs, and no other journal format is imported here. Source: "Command log" of the workq
documents, docs/journal-workq.md.
"""
