"""What torchdata 0.9.0 offered, name by name: here under the same name, or left out and why."""

from __future__ import annotations

import importlib

import pytest
from torch.utils.data import IterDataPipe, MapDataPipe

import swift_loader.dataloader2

HERE = "here"
TORCH = "torch has it"

CLOUD = "open_files_by_fsspec and list_files_by_fsspec do it, for every store that fsspec knows"
HTTP = "open_files_by_fsspec opens http(s) names"
DATAFRAMES = "made torcharrow frames; torcharrow is no longer developed"
DISK_CACHE = "fsspec's own `filecache::` does it, between processes too"
INNER = "inner workings of its queues between processes; workers here speak another protocol"

LOADER = {
    "CheckpointableReadingServiceInterface": HERE,
    "DataLoader2": HERE,
    "DataLoader2Iterator": HERE,
    "DistributedReadingService": HERE,
    "InProcessReadingService": HERE,
    "MultiProcessingReadingService": HERE,
    "PauseIteration": HERE,
    "PrototypeMultiProcessingReadingService": HERE,
    "ReadingServiceInterface": HERE,
    "SequentialReadingService": HERE,
    "ShuffleSpec": "an empty base class that nothing used",
}
GRAPH = {
    "DataPipe": HERE,
    "DataPipeGraph": HERE,
    "find_dps": HERE,
    "list_dps": HERE,
    "remove_dp": HERE,
    "replace_dp": HERE,
    "set_datapipes_seed": HERE,
    "set_graph_random_seed": HERE,
    "traverse_dps": HERE,
}
RANDOM = {"SeedGenerator": HERE, "dist_share_seed": HERE}
ADAPTER = {"Adapter": HERE, "CacheTimeout": HERE, "Shuffle": HERE}
ERROR = {"PauseIteration": HERE}
SERVICE = {
    "CheckpointableReadingServiceInterface": HERE,
    "DistributedReadingService": HERE,
    "InProcessReadingService": HERE,
    "MultiProcessingReadingService": HERE,
    "PrototypeMultiProcessingReadingService": HERE,
    "ReadingServiceInterface": HERE,
    "SequentialReadingService": HERE,
}
# `WorkerInfo` is in the package itself here.
WORKER_UTILS = {
    "WorkerInfo": "in swift_loader.dataloader2 itself",
    "process_init_fn": INNER,
    "process_reset_fn": INNER,
}
COMMUNICATION = dict.fromkeys(["eventloop", "iter", "map", "messages", "protocol", "queue"], INNER)

ITER = {
    "AISFileLister": CLOUD,
    "AISFileLoader": CLOUD,
    "BatchAsyncMapper": HERE,
    "BatchMapper": HERE,
    "Batcher": TORCH,
    "BucketBatcher": HERE,
    "Bz2FileLoader": HERE,
    "CSVDictParser": HERE,
    "CSVParser": HERE,
    "Collator": TORCH,
    "Concater": TORCH,
    "Cycler": HERE,
    "DataFrameMaker": DATAFRAMES,
    "Decompressor": HERE,
    "Demultiplexer": TORCH,
    "Dropper": HERE,
    "EndOnDiskCacheHolder": DISK_CACHE,
    "Enumerator": HERE,
    "Extractor": HERE,
    "FSSpecFileLister": HERE,
    "FSSpecFileOpener": HERE,
    "FSSpecSaver": HERE,
    "FileLister": TORCH,
    "FileOpener": TORCH,
    "Filter": TORCH,
    "FlatMapper": HERE,
    "Flattener": HERE,
    "Forker": TORCH,
    "FullSync": HERE,
    "GDriveReader": "its page has changed since; the package gdrivefs gives fsspec that store",
    "Grouper": TORCH,
    "HashChecker": HERE,
    "Header": HERE,
    "HttpReader": HTTP,
    "HuggingFaceHubReader": "`datasets`' streaming data sets go into IterableWrapper",
    "InBatchShuffler": HERE,
    "InMemoryCacheHolder": HERE,
    "IndexAdder": HERE,
    "IoPathFileLister": CLOUD,
    "IoPathFileOpener": CLOUD,
    "IoPathSaver": CLOUD,
    "IterDataPipe": TORCH,
    "IterKeyZipper": HERE,
    "IterableWrapper": TORCH,
    "JsonParser": HERE,
    "LengthSetter": HERE,
    "LineReader": HERE,
    "MapKeyZipper": HERE,
    "MapToIterConverter": HERE,
    "Mapper": TORCH,
    "MaxTokenBucketizer": HERE,
    "Multiplexer": TORCH,
    "MultiplexerLongest": HERE,
    "OnDiskCacheHolder": DISK_CACHE,
    "OnlineReader": HTTP,
    "ParagraphAggregator": HERE,
    "ParquetDataFrameLoader": DATAFRAMES,
    "PinMemory": HERE,
    "Prefetcher": HERE,
    "RandomSplitter": HERE,
    "RarArchiveLoader": "needs a program that is not free to be given along",
    "Repeater": HERE,
    "RoundRobinDemultiplexer": HERE,
    "RoutedDecoder": TORCH,
    "Rows2Columnar": HERE,
    "S3FileLister": CLOUD,
    "S3FileLoader": CLOUD,
    "SampleMultiplexer": HERE,
    "Sampler": TORCH,
    "Saver": HERE,
    "ShardExpander": HERE,
    "ShardingFilter": TORCH,
    "ShardingRoundRobinDispatcher": HERE,
    "ShuffledFlatMapper": HERE,
    "Shuffler": TORCH,
    "Slicer": HERE,
    "StreamReader": TORCH,
    "TFRecordLoader": "needs protobuf; the package `tfrecord` reads them into IterableWrapper",
    "TarArchiveLoader": HERE,
    "ThreadPoolMapper": HERE,
    "UnBatcher": TORCH,
    "UnZipper": HERE,
    "WebDataset": HERE,
    "XzFileLoader": HERE,
    "ZipArchiveLoader": HERE,
    "Zipper": TORCH,
    "ZipperLongest": HERE,
}
MAP = {
    "Batcher": TORCH,
    "Concater": TORCH,
    "InMemoryCacheHolder": HERE,
    "IterToMapConverter": HERE,
    "MapDataPipe": TORCH,
    "Mapper": TORCH,
    "SequenceWrapper": TORCH,
    "Shuffler": TORCH,
    "UnZipper": HERE,
    "Zipper": TORCH,
}
FUNCTIONAL_ITER = {
    **dict.fromkeys(
        [
            "add_index",
            "async_map_batches",
            "bucketbatch",
            "check_hash",
            "cycle",
            "decompress",
            "drop",
            "enumerate",
            "extract",
            "flatmap",
            "flatten",
            "fullsync",
            "header",
            "in_batch_shuffle",
            "in_memory_cache",
            "lines_to_paragraphs",
            "list_files_by_fsspec",
            "load_from_bz2",
            "load_from_tar",
            "load_from_xz",
            "load_from_zip",
            "map_batches",
            "max_token_bucketize",
            "mux_longest",
            "open_files_by_fsspec",
            "parse_csv",
            "parse_csv_as_dict",
            "parse_json_files",
            "pin_memory",
            "prefetch",
            "random_split",
            "readlines",
            "repeat",
            "round_robin_demux",
            "rows2columnar",
            "save_by_fsspec",
            "save_to_disk",
            "set_length",
            "shard_expand",
            "sharding_round_robin_dispatch",
            "shuffled_flatmap",
            "slice",
            "threadpool_map",
            "to_map_datapipe",
            "unzip",
            "webdataset",
            "zip_longest",
            "zip_with_iter",
            "zip_with_map",
        ],
        HERE,
    ),
    **dict.fromkeys(
        [
            "batch",
            "collate",
            "concat",
            "demux",
            "filter",
            "fork",
            "groupby",
            "list_files",
            "map",
            "mux",
            "open_files",
            "read_from_stream",
            "routed_decode",
            "sharding_filter",
            "shuffle",
            "trace_as_dataframe",
            "unbatch",
            "zip",
        ],
        TORCH,
    ),
    "dataframe": DATAFRAMES,
    "end_caching": DISK_CACHE,
    "list_files_by_ais": CLOUD,
    "list_files_by_iopath": CLOUD,
    "list_files_by_s3": CLOUD,
    "load_files_by_ais": CLOUD,
    "load_files_by_s3": CLOUD,
    "load_from_rar": ITER["RarArchiveLoader"],
    "load_from_tfrecord": ITER["TFRecordLoader"],
    "load_parquet_as_df": DATAFRAMES,
    "memory_cell": DISK_CACHE,
    "on_disk_cache": DISK_CACHE,
    "open_files_by_iopath": CLOUD,
    "read_from_gdrive": ITER["GDriveReader"],
    "read_from_http": HTTP,
    "read_from_remote": HTTP,
    "save_by_iopath": CLOUD,
}
FUNCTIONAL_MAP = {
    **dict.fromkeys(["in_memory_cache", "to_iter_datapipe", "unzip"], HERE),
    **dict.fromkeys(["batch", "concat", "map", "shuffle", "zip"], TORCH),
}

MODULES = {
    "swift_loader.dataloader2": LOADER,
    "swift_loader.dataloader2.graph": GRAPH,
    "swift_loader.dataloader2.random": RANDOM,
    "swift_loader.dataloader2.adapter": ADAPTER,
    "swift_loader.dataloader2.error": ERROR,
    "swift_loader.dataloader2.reading_service": SERVICE,
    "swift_loader.dataloader2.iter": ITER,
    "swift_loader.dataloader2.map": MAP,
}


@pytest.mark.parametrize("module", MODULES)
def test_every_name_is_here_or_left_out(module: str) -> None:
    there = importlib.import_module(module)
    for name, verdict in MODULES[module].items():
        is_here = verdict in (HERE, TORCH)
        assert hasattr(there, name) == is_here, f"{name}: {verdict}"
        assert (name in there.__all__) == is_here, f"{name}: {verdict}"


@pytest.mark.parametrize(
    ("base", "table"),
    [(IterDataPipe, FUNCTIONAL_ITER), (MapDataPipe, FUNCTIONAL_MAP)],
    ids=["iter", "map"],
)
def test_every_functional_name_is_here_or_left_out(base: type, table: dict[str, str]) -> None:
    functions = base.functions  # type: ignore[attr-defined]
    for name, verdict in table.items():
        assert (name in functions) == (verdict in (HERE, TORCH)), f"{name}: {verdict}"


def test_a_star_import_hides_no_builtin() -> None:
    assert not {"iter", "map"} & set(swift_loader.dataloader2.__all__)


@pytest.mark.parametrize("module", MODULES)
def test_what_is_listed_is_there(module: str) -> None:
    there = importlib.import_module(module)
    assert all(hasattr(there, name) for name in there.__all__)
    assert sorted(set(there.__all__)) == sorted(there.__all__)
