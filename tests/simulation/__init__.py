"""A deterministic simulation of the log in an object store, under owners that stall, crash and come back.

What is real: `ObjectWal` with its recovery, claim, manifest and lease of `millrace.server.ownership`, and
`RetryingStore`. What is simulated: time, the network to an object store in memory, and the processes, whose container
is no more than the list of the runs that are durable. One seed is one schedule; the same seed gives the same schedule.

    virtual_loop   an event loop whose time jumps, and the processes in it, which can be frozen
    network        requests that take their time, get lost, come late, or are refused
    process        a server: it claims, recovers, appends, copies its state, and gives up
    schedule       what happens to the servers in one schedule, and the last claimant that judges it
    history        what was submitted, acknowledged and found, and what must be true of it
    mutants        schemes that lose events, and that the simulation has to catch

It mirrors no module. To replay a seed, or to try more of them than the suite does:

    python -m tests.simulation --only 4711                              # a schedule of the log
    python -m tests.simulation --torture transactions --only 4711       # whole servers and clients
    python -m tests.simulation --hours 2                                # all of them in turn
"""
