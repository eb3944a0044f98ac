"""``swift-loader doctor``: what there is for a loader on this machine, to paste into a bug report.

==========  =============================================================================
``finding`` one line of the report; pure
``machine`` versions, CPUs, memory, limits: read, and nothing is changed
``trials``  what is tried out: workers, pinned memory, endpoints
``command`` the command line
==========  =============================================================================
"""
