"""The floor of workers: how they are started, born, and make batches.

In the training process (no torch is imported for these):

- `launch` starts the process that workers are forked from, and asks it for workers;
- `surroundings` reads what a worker must share with the training process: environment, folder,
  search path and `settings`;
- `place` says where a worker stands among all, `cpus` and `cgroups` how many there can be.

Between the two:

- `zygote` is the process that workers are forked from; `signals` says what ends it and them.

In the worker:

- `birth` makes a worker of a process, of every kind;
- `process` is the life of one that is a child process: orders come, batches go;
- `maker` makes a batch of numbered samples, `stream` one of a stream; both go on to `make_batch`;
- `columns` gathers the batches of data sets that are arrays, without samples;
- `recipe` is what the user gave; `faults` brings an exception to the training loop;
- `progress` shows where the worker is while it hangs.
"""
