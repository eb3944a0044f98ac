"""Iterable pipes: torch's own, and those that torch never had, under the names that both had.

Importing this registers the functional names (`dp.parse_csv()`); see `registry` for what happens
where another package holds one of them.
"""

from __future__ import annotations

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import (
    Batcher,
    Collator,
    Concater,
    Demultiplexer,
    FileLister,
    FileOpener,
    Filter,
    Forker,
    Grouper,
    IterableWrapper,
    Mapper,
    Multiplexer,
    RoutedDecoder,
    Sampler,
    ShardingFilter,
    Shuffler,
    StreamReader,
    UnBatcher,
    Zipper,
)

from swift_loader.dataloader2.iter.agreement import FullSync
from swift_loader.dataloader2.iter.archives import (
    Bz2FileLoader,
    CompressionType,
    Decompressor,
    Extractor,
    TarArchiveLoader,
    WebDataset,
    XzFileLoader,
    ZipArchiveLoader,
)
from swift_loader.dataloader2.iter.buckets import BucketBatcher, MaxTokenBucketizer
from swift_loader.dataloader2.iter.files import (
    FSSpecFileLister,
    FSSpecFileOpener,
    FSSpecSaver,
    HashChecker,
    Saver,
    ShardExpander,
)
from swift_loader.dataloader2.iter.flow import (
    Cycler,
    Enumerator,
    Header,
    IndexAdder,
    InMemoryCacheHolder,
    LengthSetter,
    MapToIterConverter,
    Repeater,
)
from swift_loader.dataloader2.iter.items import (
    BatchMapper,
    Dropper,
    FlatMapper,
    Flattener,
    Slicer,
)
from swift_loader.dataloader2.iter.mixing import (
    IterKeyZipper,
    MapKeyZipper,
    MultiplexerLongest,
    SampleMultiplexer,
    ZipperLongest,
)
from swift_loader.dataloader2.iter.order import InBatchShuffler, RandomSplitter, ShuffledFlatMapper
from swift_loader.dataloader2.iter.prefetch import PinMemory, Prefetcher
from swift_loader.dataloader2.iter.rows import (
    CSVDictParser,
    CSVParser,
    JsonParser,
    LineReader,
    ParagraphAggregator,
    Rows2Columnar,
)
from swift_loader.dataloader2.iter.sharding import ShardingRoundRobinDispatcher
from swift_loader.dataloader2.iter.splitting import RoundRobinDemultiplexer, UnZipper
from swift_loader.dataloader2.iter.waiting import BatchAsyncMapper, ThreadPoolMapper

__all__ = [
    "BatchAsyncMapper",
    "BatchMapper",
    "Batcher",
    "BucketBatcher",
    "Bz2FileLoader",
    "CSVDictParser",
    "CSVParser",
    "Collator",
    "CompressionType",
    "Concater",
    "Cycler",
    "Decompressor",
    "Demultiplexer",
    "Dropper",
    "Enumerator",
    "Extractor",
    "FSSpecFileLister",
    "FSSpecFileOpener",
    "FSSpecSaver",
    "FileLister",
    "FileOpener",
    "Filter",
    "FlatMapper",
    "Flattener",
    "Forker",
    "FullSync",
    "Grouper",
    "HashChecker",
    "Header",
    "InBatchShuffler",
    "InMemoryCacheHolder",
    "IndexAdder",
    "IterDataPipe",
    "IterKeyZipper",
    "IterableWrapper",
    "JsonParser",
    "LengthSetter",
    "LineReader",
    "MapKeyZipper",
    "MapToIterConverter",
    "Mapper",
    "MaxTokenBucketizer",
    "Multiplexer",
    "MultiplexerLongest",
    "ParagraphAggregator",
    "PinMemory",
    "Prefetcher",
    "RandomSplitter",
    "Repeater",
    "RoundRobinDemultiplexer",
    "RoutedDecoder",
    "Rows2Columnar",
    "SampleMultiplexer",
    "Sampler",
    "Saver",
    "ShardExpander",
    "ShardingFilter",
    "ShardingRoundRobinDispatcher",
    "ShuffledFlatMapper",
    "Shuffler",
    "Slicer",
    "StreamReader",
    "TarArchiveLoader",
    "ThreadPoolMapper",
    "UnBatcher",
    "UnZipper",
    "WebDataset",
    "XzFileLoader",
    "ZipArchiveLoader",
    "Zipper",
    "ZipperLongest",
]
