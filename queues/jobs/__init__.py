"""Jobs with leases, schedules and results, as workq has them: `job` (one job and its states), `times` (its moments),
`jobs` (all of them and what can happen), `queue` and `line` (ready and scheduled jobs in order), `timers`, `journal`
(what is recorded) and `replay` (jobs from a log). No clock, no files, nothing of the protocol.
"""
