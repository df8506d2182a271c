"""Real servers for tests: Kafka, PostgreSQL, HDFS and Pravega, on the addresses of this machine only.

`plugin` has the pytest fixtures. `kafka`, `postgres`, `hdfs` and `pravega` start servers of your own making: other settings,
several brokers, a proxy in front.
"""
