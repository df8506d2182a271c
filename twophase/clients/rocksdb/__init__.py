"""RocksDB: what the sink and the readers of a state share. Without rocksdict, importing any of it says what to install."""

from twophase.extras import require

require("rocksdict", "rocksdb")
