"""PostgresSink: rows in tables of PostgreSQL."""
