"""Readers of files for `Shards`: each gives the items of one shard, by well-kept libraries.

`addresses`
    Opening and listing files by fsspec's addresses (``s3://…``, ``gs://…``, paths).
`columns`
    Parquet and Arrow, by pyarrow. A row group, or a record batch, is a shard.
`lines`, `archives`
    JSON Lines; tar archives in webdataset's layout. A file is a shard.
`hugging_face`
    Streams of Hugging Face, which tell their shards.
`chunks`
    LitData's chunks, by litdata.
"""
