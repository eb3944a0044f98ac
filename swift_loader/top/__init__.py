"""``swift-loader top``: a live table of what runs now.

=================  ===============================================================================
``command``        the command line, and the loop
``places``         where it looks: benchmark files, pages for Prometheus, endpoints
``tables``         what it shows of what it found there; pure
=================  ===============================================================================
"""
