"""Record batches: rows of a topic as the bytes that its partitions are sent, message format 2.

::

    rows ─► which partition each belongs to ─► for each partition, its rows in their order ─► batches ─► sealed

Everything that is done for each record is done in C (`_record_batches`), from the addresses of the values; what was written to a
batch is a copy of them. A batch that is too large for its topic is cut in two.

Where the C could not be built, or a setting is one that only librdkafka has, librdkafka does all this (sinks/kafka/producer.py).
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from twophase.clients.kafka.rows import Addresses, Rows, addresses

native: Any
"""What is done for each record, in C."""
try:
    native = importlib.import_module("twophase._record_batches")
except ImportError:  # there was no compiler where twophase was installed
    native = None

DEFAULT_BATCH_BYTES = 512 << 10
_LARGEST_BATCH_BYTES = 1_000_000
"""A bit less than what topics take unless they are told otherwise."""
_TRANSACTIONAL = 0x10
_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 << 10
_KNOWN_SETTINGS = frozenset(
    {
        "acks",
        "batch.size",
        "bootstrap.servers",
        "client.id",
        "compression.level",
        "compression.type",
        "delivery.timeout.ms",
        "enable.idempotence",
        "enable.ssl.certificate.verification",
        "linger.ms",
        "log_level",
        "max.in.flight.requests.per.connection",
        "message.max.bytes",
        "metadata.max.age.ms",
        "partitioner",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retries",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.key.pem",
    }
)
"""By librdkafka's names: those that mean something here, and those whose meaning is kept without them."""
_NUMBERS = (
    "delivery.timeout.ms",
    "linger.ms",
    "max.in.flight.requests.per.connection",
    "metadata.max.age.ms",
    "reconnect.backoff.ms",
    "request.timeout.ms",
    "retries",
)
_PARTITIONER = "murmur2_random"
_LZ4_HEADER = bytes.fromhex("04224d18604082")
"""Blocks of 64 KiB that do not depend on each other: others Java's client can't read, and Arrow's frames have them."""
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_UNCOMPRESSED = 1 << 31


@dataclass(frozen=True)
class BatchForm:
    """How batches are made, by the settings of a producer."""

    most_bytes: int = DEFAULT_BATCH_BYTES
    compression: str = "none"
    compression_level: int | None = None
    largest_record: int | None = None
    """Larger ones are refused, by what people have set; else the topic alone has a say."""

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> BatchForm | None:
        """By librdkafka's names; None if these settings are not for us."""
        if native is None or not settings.keys() <= _KNOWN_SETTINGS:
            return None
        compression = settings.get("compression.type", "none")
        if compression not in _CODECS or settings.get("partitioner", _PARTITIONER) != _PARTITIONER:
            return None
        try:
            numbers = [float(settings[name]) for name in _NUMBERS if name in settings]
            largest = int(settings["message.max.bytes"]) if "message.max.bytes" in settings else None
            most = min(int(settings.get("batch.size", DEFAULT_BATCH_BYTES)), largest or _LARGEST_BATCH_BYTES)
            level = int(settings.get("compression.level", -1))
            made = cls(most, compression, None if level == -1 else level, largest)
            made._compressed(b"")
        except (ValueError, OSError):
            return None  # librdkafka has the words for it
        return None if most < 1 or any(number < 0 for number in numbers) else made

    def _compressed(self, records: bytes) -> bytes:
        if self.compression == "none":
            return records
        if self.compression == "snappy":
            return _in_xerial_frames(records)
        if self.compression == "lz4":
            return _in_lz4_frame(records, self.compression_level)
        codec: Any = pa.Codec(cast(Any, self.compression), self.compression_level)
        return bytes(codec.compress(records, asbytes=True))


@dataclass(frozen=True)
class Columns:
    """Rows, as C takes them, for as long as the memory that they lie in is theirs."""

    keys: tuple[Addresses, Addresses]
    values: tuple[Addresses, Addresses]
    times: npt.NDArray[np.int64] | None
    header_offsets: npt.NDArray[np.int64] | None
    header_keys: tuple[Addresses, Addresses] | None
    header_values: tuple[Addresses, Addresses] | None
    base_time_ms: int
    kept: Rows = field(repr=False)

    @classmethod
    def of(cls, rows: Rows, now_ms: int) -> Columns:
        count = len(rows.values)
        nothing = np.zeros(count, np.uint64)
        offsets = header_keys = header_values = None
        if rows.headers is not None:
            # What lies below a null is arbitrary: it becomes an empty list.
            none: Any = pa.scalar([], rows.headers.type)
            headers: Any = pc.if_else(rows.headers.is_null(), none, rows.headers)
            rows = replace(rows, headers=headers)
            offsets = _header_offsets(headers)
            header_keys, header_values = (addresses(headers.values.field(name)) for name in ("key", "value"))
        times = None if rows.times is None else np.ascontiguousarray(rows.times)
        keys = (nothing, nothing) if rows.keys is None else addresses(rows.keys)
        return cls(keys, addresses(rows.values), times, offsets, header_keys, header_values, now_ms, rows)

    def by_partition(self, count: int, any_of: Sequence[int]) -> dict[int, npt.NDArray[np.int64]]:
        """Partition → its rows, in their order. Rows without a key, and without a partition of their own, go to `any_of` these: as
        many to each, in one piece."""
        chosen = np.empty(len(self.keys[0]), np.int32)
        native.partitions(*self.keys, count, chosen)
        if self.kept.partitions is not None:
            chosen = np.where(self.kept.partitions >= 0, self.kept.partitions, chosen)
        free = np.flatnonzero(chosen < 0)
        if len(free):
            chosen[free] = np.array(any_of, np.int32)[np.arange(len(free)) * len(any_of) // len(free)]
        order = np.argsort(chosen, kind="stable")
        numbers, starts = np.unique(chosen[order], return_index=True)
        return dict(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True))


@dataclass(frozen=True)
class Batch:
    """Records of one partition, to be sent as one."""

    records: bytes = field(repr=False)
    count: int
    base_time_ms: int
    newest_ms: int

    def sealed(self, form: BatchForm, producer_id: int, producer_epoch: int, sequence: int) -> bytes:
        """As it is sent; outside of transactions, producer id, epoch and sequence are -1."""
        attributes = _CODECS[form.compression] | (_TRANSACTIONAL if producer_id >= 0 else 0)
        made: bytes = native.sealed(
            form._compressed(self.records),
            attributes,
            self.count,
            self.base_time_ms,
            self.newest_ms,
            producer_id,
            producer_epoch,
            sequence,
        )
        return made

    def halves(self) -> list[Batch]:
        """The same records in two batches: each begins to count anew."""
        pieces = list(_pieces(self.records))
        middle = len(pieces) // 2
        return [self._of(pieces[:middle]), self._of(pieces[middle:])]

    def _of(self, pieces: Sequence[tuple[int, bytes]]) -> Batch:
        made = bytearray()
        for offset, (delta_ms, rest) in enumerate(pieces):
            record = b"\x00" + _varint(delta_ms) + _varint(offset) + rest
            made += _varint(len(record)) + record
        newest_ms = self.base_time_ms + max(delta_ms for delta_ms, _ in pieces)
        return Batch(bytes(made), len(pieces), self.base_time_ms, newest_ms)


def batches_of(columns: Columns, rows: npt.NDArray[np.int64], most_bytes: int) -> Iterator[Batch]:
    """The rows in batches of at most so many bytes; a record that is larger has one of its own."""
    begun = 0
    while begun < len(rows):
        left = np.ascontiguousarray(rows[begun:])
        records, taken, newest_ms = native.records(
            most_bytes,
            columns.base_time_ms,
            left,
            *columns.keys,
            *columns.values,
            columns.times,
            columns.header_offsets,
            *(columns.header_keys or (None, None)),
            *(columns.header_values or (None, None)),
        )
        yield Batch(records, taken, columns.base_time_ms, newest_ms)
        begun += taken


def _header_offsets(headers: Any) -> npt.NDArray[np.int64]:
    """Where the headers of each row begin, and where those of the last one end."""
    kind = np.dtype(np.int64 if pa.types.is_large_list(headers.type) else np.int32)
    offsets = np.frombuffer(headers.buffers()[1], kind, len(headers) + 1, headers.offset * kind.itemsize)
    return offsets.astype(np.int64)


def _pieces(records: bytes) -> Iterator[tuple[int, bytes]]:
    """Of each record: how much later it is than the batch's time, and what stands behind its place in the batch."""
    at = 0
    while at < len(records):
        size, at = _read_varint(records, at)
        end = at + size
        delta_ms, at = _read_varint(records, at + 1)
        _, at = _read_varint(records, at)
        yield delta_ms, records[at:end]
        at = end


def _varint(number: int) -> bytes:
    left, made = (number << 1) ^ (number >> 63), bytearray()
    while left >= 128:
        made.append(left & 127 | 128)
        left >>= 7
    return bytes([*made, left])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number, and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return (number >> 1) ^ -(number & 1), at
        shift += 7


def _in_lz4_frame(data: bytes, level: int | None) -> bytes:
    codec: Any = pa.Codec("lz4_raw", level)
    parts = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        block = data[start : start + _LZ4_BLOCK_BYTES]
        packed = bytes(codec.compress(block, asbytes=True))
        if len(packed) < len(block):
            parts += [struct.pack("<I", len(packed)), packed]
        else:
            parts += [struct.pack("<I", len(block) | _LZ4_UNCOMPRESSED), block]
    return b"".join([*parts, bytes(4)])


def _in_xerial_frames(data: bytes) -> bytes:
    """Snappy as Java's client frames it: blocks, each with its length."""
    codec, parts = pa.Codec("snappy"), [_XERIAL]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(codec.compress(data[start : start + _XERIAL_BLOCK_BYTES], asbytes=True))
        parts += [struct.pack(">i", len(block)), block]
    return b"".join(parts)
