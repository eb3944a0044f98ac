"""``swift-loader bench``: how fast a data set is, alone and with workers, and what to do about it.

===========  =====================================================================================
``trials``   measures one way of getting batches
``advice``   what the measurements say; pure
``text``     how they are shown; pure
``command``  the command line
===========  =====================================================================================
"""
