"""The pipeline of one training process: numbers down to workers, batches up to the training loop.

    loop ──take──▶ shell ──▶ books ──actions──▶ shell ──make──▶ link ═══▶ worker
    loop ◀─batch── shell ◀── books ◀──events─── shell ◀─read─── link ◀═══ worker

*Pure* (no lock, thread, socket or clock; tested without a process):

- `books`: which number is where. Takes events, returns `actions`.
- `numbers`: what is to be made, epoch after epoch. `dispatch` and `load`: by which worker, and how
  much each may hold. `delivery`: what is ready, and in which order it is taken. `roster` and
  `scaling`: which workers run. `supervision`: who is replaced, and when it is enough.

*With the world*:

- `shell`: the lock and the threads that wait. `hands`: the links; carries actions out. `turns`:
  which of the training threads reads.
- `link`: what every kind of worker looks like from here, and what it says. `local`: a child
  process. Others stand in `swift_loader.remote`; `elsewhere` is how a loader gets them.
- `reader`: waiting for what workers send. `item`: a batch on its way.
- `staging`: batches onto the device, ahead of the loop.
- `out_of_memory`: whether it was the lack of memory that killed a worker.

To add a kind of worker, write a `Link`. To change who makes what, go to `dispatch`.
"""
