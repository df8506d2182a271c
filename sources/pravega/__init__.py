"""The source of Pravega streams."""

from twophase.sources.pravega.source import PravegaSource

__all__ = ["PravegaSource"]
