"""Kafka: one transaction a task, ended by the driver."""
