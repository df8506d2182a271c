"""Records of topics, replayable by their offsets."""

from twophase.sources.kafka.source import KafkaSource

__all__ = ["KafkaSource"]
