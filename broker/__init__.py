"""A server without its sockets: sessions, the effects of their requests, timers, transfers between queues, recovery,
statistics. The rooms: commands/ (the effect of each request), operations/ (long work on queues that operators ask for),
selection/ (which items an operation is about), admin/ (what operators see: HTTP, the page, metrics, health), config/
(the configuration file), maintenance/ (packing, read-ahead, sidecars, memory). Everything is synchronous and
deterministic: time is an argument, the disk is an `Fs`, and the driver of the broker (server/ or sim/) runs the syncs
and tasks that the broker hands out. No sockets, threads or clocks may enter.

`broker` joins all, `session` is one client, `protocols` are what it may speak, `timers` calls at moments, `share` cuts
long work. `access`, `rights`, `users` and `status` say who may do what now. `transfers` moves items between queues,
`put_keys` knows which puts were stored before, `leases` are open reads without a connection, `streams` queues in
libkestrel's format, `jobs` the service of jobs. `figures` has every figure of a queue, `stats` and `counters` those of
the server. `recovery` and `transfer_recovery` are a start, `reloads` a reload; `wall_clock` notes each step of the
machine's clock.
"""
