"""What a loader measures and says: numbers, logs, benchmark files, reports, traces.

Imports nothing of swift_loader but its errors, so every other part may use it.

=================  ===============================================================================
``metrics``        counts and times of delivered batches, as cheap as a few float additions
``stats``          the frozen picture of them that ``loader.stats()`` returns
``log``            the ``logger`` option
``monitor``        the ``benchmark`` and ``benchmark_file`` options
``report``         ``swift-loader report``: reads benchmark files, writes a terminal or HTML page
``trace``          the ``trace_file`` option, and NVTX ranges
``prometheus``     the text form that a Prometheus server reads
=================  ===============================================================================
"""
