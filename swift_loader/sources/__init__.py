"""Descriptions of data that users write, and that the rest of the loader takes apart.

`packed`, `counting`
    Sequences of one length, made of the documents of a data set.
"""
