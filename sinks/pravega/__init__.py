"""The sink of Pravega streams."""
