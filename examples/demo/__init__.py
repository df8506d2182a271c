"""`make demo`: the same pipeline twice, killed the same way; once through twophase and once through plain `foreachBatch`."""
