"""Measures swift_loader beside its peers and beside the limit of the machine.

``python -m benchmarks`` runs everything in turn and prints the table; see ``RESULTS.md``.
"""
