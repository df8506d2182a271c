"""Connectors: where sources and sinks meet Spark; with `twophase.testing` the only importers of pyspark."""

__all__: list[str] = []
