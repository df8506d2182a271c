"""Real queries in child processes, and what is done to them: killed, frozen, restarted, compared row by row.

::

    CrashTarget ─► matrix ─► cells ─► a query in a child, paused at a failpoint ─► kill -9 ─► restart ─► every row once?

``python -m twophase.testing.crash module:Class`` runs the matrix of a target; `target.py` is what a new sink has to write for it.
"""
