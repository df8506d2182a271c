"""The protocol against a model: the real coordinator and ledger over in-memory storage and targets, every schedule tried.

========== ==========================================================================================
objects    the shared world: files, an atomic target (HeapSink's), a target by slot. Immutable, pure transitions
footprint  what an operation depends on and changes: which orders can matter
replay     runs real code up to its next operation on the world, by feeding it the results it has seen so far
spark      what Spark does around the coordinator: log, prepare, tasks, commit, abort, restart
state      a state of the exploration, what is explored, and what came of it
steps      how a state becomes the next one, and is checked
explorer   every schedule of drivers, tasks, late messages and faults, equal states merged
invariants what must hold in every state, and at the end
bounds     how far `make test` and `make model` go
mistakes   seeded mistakes in the protocol, each of which must be caught
========== ==========================================================================================
"""
