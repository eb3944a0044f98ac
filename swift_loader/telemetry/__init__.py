"""What a loader measures and says: numbers, logs, benchmark files, traces.

Imports nothing of swift_loader but its errors, so every other part may use it.

=================  ===============================================================================
``metrics``        counts and times of delivered batches, as cheap as a few float additions
``stats``          the frozen picture of them that ``loader.stats()`` returns
``log``            the ``logger`` option
``monitor``        the ``benchmark`` and ``benchmark_file`` options
``trace``          the ``trace_file`` option
=================  ===============================================================================
"""
