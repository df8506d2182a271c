"""Pravega: what PravegaSink and PravegaSource share, and could stand alone.

The controller is spoken to by gRPC, the segment stores by their own wire protocol. The published binding can do neither of what a
commit protocol needs: finish a transaction that another process began, or read from a stream cut. Without grpcio, importing any of
it says what to install.
"""

from twophase.extras import require

require("grpc", "pravega")
