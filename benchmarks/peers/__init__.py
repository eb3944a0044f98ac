"""The loaders that swift_loader is measured against, each set up as its own documentation advises.

Every module here offers one or more functions that take a workload and a number of workers and
open an endless stream of batches.
"""
