"""Keyed state in files of RocksDB: one manifest an epoch, which says which key groups are in which files."""
