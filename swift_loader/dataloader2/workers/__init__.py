"""A graph of pipes in worker processes: what is said, and who says it.

```
 training process                            dispatching process (if the graph has one)
   WorkersPipe ◀── PipeWorkers ── Feed ◀─┐             Server ── Dealer ── its part of the graph
                                         │ chunks, slots   │ chunks, slots
                                         └── worker: Server ── the worker's copy ── Feed ◀┘
```

A `Feed` gives credit (`Give`: up to so many items, into this slot), a `Server` answers each `Give`
once, with a *chunk*: the items that it made within a few milliseconds, as one message and one slot.
So small items cost little and large or slow ones do not wait for each other, and a consumer that
stops taking items stops the whole line by giving no more credit. An epoch is a number that every
`Give` bears: beginning another one (`Begin`) needs no waiting for what is still under way.
"""
