"""What a Python worker keeps for good is taken out of its garbage collections.

Spark uses workers again, and runs a full collection after every task (`pyspark/daemon.py`). With Spark, pyarrow and numpy imported
that looks at some hundred thousand objects which never go away: 40 ms a task were measured, a fifth of all that the worker did for
250,000 rows. So everything that is there when the first task has ended is set aside, once; what comes later is collected as ever.
"""

from __future__ import annotations

import gc
from functools import cache


@cache
def set_aside_what_stays() -> None:
    """Called when a task has done its work; does something the first time in each process."""
    gc.collect()
    gc.freeze()
