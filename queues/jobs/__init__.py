"""Jobs with leases, schedules and results, as in workq: `job` (one job and its states), `times` (its moments), `jobs`
(all jobs and their operations), `queue` and `line` (ready and scheduled jobs in order), `timers`, `journal` (the
recorded changes) and `replay` (jobs from a log). No code here uses clocks, files or the protocol.
"""
