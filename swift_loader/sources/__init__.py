"""Descriptions of data that users write, and that the rest of the loader takes apart.

`mixture`, `blended`
    Several data sets by weight: what the user says of them, and the data set that a worker builds.
`packed`, `counting`
    Sequences of one length, made of the documents of a data set.
"""
