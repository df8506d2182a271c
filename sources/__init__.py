"""Replayable sources: one origin a module, each with its vendor's client and without pyspark."""

__all__: list[str] = []
