from staniel.broker.counters cimport ServerCounters
from staniel.broker.maintenance.scheduler cimport MaintenanceScheduler
from staniel.journal.group_commit cimport GroupCommit


cdef class Broker:
    cdef object __weakref__
    cdef public object admin, client_events, config, deletions, file_holds, fs, holds, latencies, leases, limits, pauses, queues, rate_limited
    cdef public object reloaded, report, damages, put_keys, active_ms_of
    cdef public object spool, status, step_clock, streams, timers, transfers, unsent, woken, workq, _load, _started_with
    cdef public object _sampler, calendar, wall, _starved, _to_expire, audit, operations, recovery, undos, watch, last_backup, process
    cdef public GroupCommit group
    cdef public MaintenanceScheduler maintenance
    cdef public ServerCounters counters
    cdef public dict sessions
    cdef public object has_sent_all, health, health_log, check_reload, logged_in, logins, users
    cdef public bint serves_jobs
    cdef public long long expire_due_ms, _ballast_due_ms, _look_due_ms

    cpdef tick(self, long long now_ms)
    cpdef commit(self, long long now_ms)
