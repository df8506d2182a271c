"""HDFS: storage for tables, ledgers and checkpoints, by native RPC (`hdfs://`) or by WebHDFS (`webhdfs://`, `swebhdfs://`).

Each client is imported only when a path asks for it; without it, that says what to install.
"""
