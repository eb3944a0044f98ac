"""What the table of rates does not show: one module a question.

Each has ``run(is_quick, out)``, which measures, may leave a plot in the folder `out`, and hands
back figures. ``python -m benchmarks --only NAME`` runs one, and so does
``python -m benchmarks.further.MODULE``.
"""

MODULES = {
    "gather": "gather",
    "packed": "packed",
    "mixed": "mixed",
    "start-time": "start_time",
    "epoch-gap": "epoch_gap",
    "many-samples": "many_samples",
    "shared-dataset": "shared_dataset",
    "endurance": "endurance",
    "latency": "latency",
    "process-use": "process_use",
    "own-timings": "own_timings",
    "metrics": "metrics_cost",
    "advice": "advice",
    "threads": "thread_workers",
    "step-time": "step_time",
    "scaling": "scaling",
    "crowd": "crowd",
    "sharing": "sharing",
    "data-pipes": "data_pipes",
    "endpoints": "endpoints",
    "latency-hiding": "latency_hiding",
    "cache": "cached",
    "cache-rivals": "cache_rivals",
    "ray": "ray_workers",
}
