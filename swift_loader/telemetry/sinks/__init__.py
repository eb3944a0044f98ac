"""Sinks: where a loader's figures go besides `loader.stats()`. Each library is imported on demand.

=================  ===============================================================================
``sink``           what a sink is, and whose figures it is given
``addresses``      the option ``metrics``, checked
``pump``           a thread a sink, so that none of them holds up training
``prometheus``     a page that a Prometheus server scrapes
``otlp``           OpenTelemetry
``writers``        a callable, TensorBoard, Weights & Biases, MLflow
=================  ===============================================================================
"""
