/* Kafka's record batches (message format 2), from columns: what a topic's partition is sent, without an object for each record.

   clients/kafka/record_batches.py calls it, and says what the columns are. It is optional: where it could not be built, librdkafka
   writes the records, and takes more time for each. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define HEADER_BYTES 61
#define CRC_AT 17
#define NO_TIME INT64_MIN
#define CHECKED_FROM 21 /* the checksum is of all that follows it */

/* ---- CRC-32C ---- */

static uint32_t crc_tables[8][256];

static void make_crc_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ UINT32_C(0x82F63B78) : crc >> 1;
        crc_tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++)
            crc_tables[table][byte] = crc_tables[table - 1][byte] >> 8 ^ crc_tables[0][crc_tables[table - 1][byte] & 255];
}

static uint32_t crc_by_tables(uint32_t crc, const uint8_t *data, size_t size)
{
    for (; size >= 8; data += 8, size -= 8) {
        crc ^= (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        crc = crc_tables[7][crc & 255] ^ crc_tables[6][crc >> 8 & 255] ^ crc_tables[5][crc >> 16 & 255]
            ^ crc_tables[4][crc >> 24] ^ crc_tables[3][data[4]] ^ crc_tables[2][data[5]] ^ crc_tables[1][data[6]]
            ^ crc_tables[0][data[7]];
    }
    while (size--)
        crc = crc >> 8 ^ crc_tables[0][(crc ^ *data++) & 255];
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("sse4.2"))) static uint32_t crc_by_processor(uint32_t crc, const uint8_t *data, size_t size)
{
    uint64_t wide = crc;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, sizeof word);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    while (size--)
        crc = __builtin_ia32_crc32qi(crc, *data++);
    return crc;
}

static int processor_has_crc(void) { return __builtin_cpu_supports("sse4.2"); }
#else
#define crc_by_processor crc_by_tables
static int processor_has_crc(void) { return 0; }
#endif

static int has_crc; /* set when the module is loaded */

static uint32_t crc32c_of(const uint8_t *data, size_t size, int by_tables)
{
    uint32_t crc = UINT32_C(0xFFFFFFFF);
    return ~(has_crc && !by_tables ? crc_by_processor(crc, data, size) : crc_by_tables(crc, data, size));
}

PyDoc_STRVAR(crc32c_doc, "crc32c(data, by_tables=False)\n\nThe checksum; by tables even where the processor has an instruction for it.");

static PyObject *crc32c(PyObject *module, PyObject *arguments)
{
    Py_buffer data;
    int by_tables = 0;
    if (!PyArg_ParseTuple(arguments, "y*|p", &data, &by_tables))
        return NULL;
    uint32_t crc = crc32c_of(data.buf, (size_t)data.len, by_tables);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

/* ---- partitions by key ---- */

/* As Java's client has it: Utils.murmur2. */
static uint32_t murmur2(const uint8_t *data, uint64_t size)
{
    const uint32_t factor = UINT32_C(0x5BD1E995);
    uint32_t hash = UINT32_C(0x9747B28C) ^ (uint32_t)size;
    uint64_t left = size;
    for (; left >= 4; data += 4, left -= 4) {
        uint32_t word = (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        word *= factor;
        word ^= word >> 24;
        word *= factor;
        hash = hash * factor ^ word;
    }
    if (left == 3)
        hash ^= (uint32_t)data[2] << 16;
    if (left >= 2)
        hash ^= (uint32_t)data[1] << 8;
    if (left >= 1) {
        hash ^= data[0];
        hash *= factor;
    }
    hash ^= hash >> 13;
    hash *= factor;
    return hash ^ hash >> 15;
}

static int require_items(const Py_buffer *buffer, Py_ssize_t items, Py_ssize_t item_bytes, const char *what)
{
    if (buffer->buf == NULL || buffer->len == items * item_bytes)
        return 1;
    PyErr_Format(PyExc_ValueError, "%s: %zd bytes, and not %zd items of %zd", what, buffer->len, items, item_bytes);
    return 0;
}

PyDoc_STRVAR(partitions_doc,
    "partitions(places, lengths, count, out)\n\n"
    "The partition of each key, of `count`, as Java's client chooses it; -1 where the place is 0. Places and lengths are uint64, "
    "out is int32.");

static PyObject *partitions(PyObject *module, PyObject *arguments)
{
    Py_buffer places, lengths, out;
    unsigned int count;
    if (!PyArg_ParseTuple(arguments, "y*y*Iw*", &places, &lengths, &count, &out))
        return NULL;
    Py_ssize_t keys = places.len / 8;
    int fits = require_items(&lengths, keys, 8, "lengths") && require_items(&out, keys, 4, "out");
    if (fits && count == 0) {
        PyErr_SetString(PyExc_ValueError, "there are no partitions");
        fits = 0;
    }
    if (fits) {
        const uint64_t *at = places.buf, *length = lengths.buf;
        int32_t *chosen = out.buf;
        Py_BEGIN_ALLOW_THREADS;
        for (Py_ssize_t key = 0; key < keys; key++)
            chosen[key] = at[key] == 0
                ? -1
                : (int32_t)((murmur2((const uint8_t *)(uintptr_t)at[key], length[key]) & UINT32_C(0x7FFFFFFF)) % count);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&places);
    PyBuffer_Release(&lengths);
    PyBuffer_Release(&out);
    if (!fits)
        return NULL;
    Py_RETURN_NONE;
}

/* ---- records ---- */

typedef struct {
    const uint64_t *at, *length; /* at 0: null */
} Values;

typedef struct {
    const int64_t *rows;
    Values keys, values;
    const int64_t *times; /* or NULL: all at base_time */
    int64_t base_time;
    const int64_t *header_offsets; /* or NULL: none has headers */
    Values header_keys, header_values;
} Columns;

static inline uint64_t zigzag(int64_t number) { return (uint64_t)number << 1 ^ (uint64_t)(number >> 63); }

static inline int size_of(int64_t number)
{
    uint64_t left = zigzag(number);
    int bytes = 1;
    while (left >= 128) {
        left >>= 7;
        bytes++;
    }
    return bytes;
}

static inline uint8_t *put(uint8_t *out, int64_t number)
{
    uint64_t left = zigzag(number);
    while (left >= 128) {
        *out++ = (uint8_t)(left | 128);
        left >>= 7;
    }
    *out++ = (uint8_t)left;
    return out;
}

static inline int64_t length_of(const Values *values, int64_t row) { return values->at[row] ? (int64_t)values->length[row] : -1; }

static inline int64_t bytes_of(const Values *values, int64_t row)
{
    int64_t length = length_of(values, row);
    return size_of(length) + (length > 0 ? length : 0);
}

static inline uint8_t *put_bytes(uint8_t *out, const Values *values, int64_t row)
{
    int64_t length = length_of(values, row);
    out = put(out, length);
    if (length > 0) {
        memcpy(out, (const void *)(uintptr_t)values->at[row], (size_t)length);
        out += length;
    }
    return out;
}

static inline int64_t time_of(const Columns *columns, int64_t row)
{
    return columns->times == NULL || columns->times[row] == NO_TIME ? columns->base_time : columns->times[row];
}

/* Without the length that stands before it. */
static inline int64_t record_bytes(const Columns *columns, int64_t row, int64_t offset)
{
    int64_t bytes = 1 + size_of(time_of(columns, row) - columns->base_time) + size_of(offset);
    bytes += bytes_of(&columns->keys, row) + bytes_of(&columns->values, row);
    if (columns->header_offsets == NULL)
        return bytes + 1;
    int64_t first = columns->header_offsets[row], end = columns->header_offsets[row + 1];
    bytes += size_of(end - first);
    for (int64_t header = first; header < end; header++)
        bytes += bytes_of(&columns->header_keys, header) + bytes_of(&columns->header_values, header);
    return bytes;
}

static inline uint8_t *put_record(uint8_t *out, const Columns *columns, int64_t row, int64_t offset, int64_t bytes)
{
    out = put(out, bytes);
    *out++ = 0; /* attributes, of which there are none */
    out = put(out, time_of(columns, row) - columns->base_time);
    out = put(out, offset);
    out = put_bytes(out, &columns->keys, row);
    out = put_bytes(out, &columns->values, row);
    int64_t first = 0, end = 0;
    if (columns->header_offsets != NULL) {
        first = columns->header_offsets[row];
        end = columns->header_offsets[row + 1];
    }
    out = put(out, end - first);
    for (int64_t header = first; header < end; header++) {
        out = put_bytes(out, &columns->header_keys, header);
        out = put_bytes(out, &columns->header_values, header);
    }
    return out;
}

/* How many of the rows fit, one at the least; `bytes` is what they take. */
static Py_ssize_t fitting(const Columns *columns, Py_ssize_t rows, int64_t most, int64_t *bytes)
{
    Py_ssize_t taken = 0;
    for (*bytes = 0; taken < rows; taken++) {
        int64_t record = record_bytes(columns, columns->rows[taken], taken);
        record += size_of(record);
        if (taken > 0 && *bytes + record > most)
            break;
        *bytes += record;
    }
    return taken;
}

static void put_records(uint8_t *out, const Columns *columns, Py_ssize_t rows, int64_t *newest)
{
    for (Py_ssize_t offset = 0; offset < rows; offset++) {
        int64_t row = columns->rows[offset], time = time_of(columns, row);
        if (time > *newest)
            *newest = time;
        out = put_record(out, columns, row, offset, record_bytes(columns, row, offset));
    }
}

enum { ROWS, KEY_AT, KEY_LENGTH, VALUE_AT, VALUE_LENGTH, TIMES, HEADERS, H_KEY_AT, H_KEY_LENGTH, H_VALUE_AT, H_VALUE_LENGTH, BUFFERS };

PyDoc_STRVAR(records_doc,
    "records(most, base_time, rows, key_at, key_length, value_at, value_length, times, header_offsets, header_key_at, "
    "header_key_length, header_value_at, header_value_length)\n\n"
    "The records of as many of the rows as take `most` bytes: (bytes, how many, the newest time). Columns are uint64 addresses and "
    "lengths, at 0 for null; rows, times (the lowest number is base_time; or None) and header_offsets (or None) are int64.");

static PyObject *records(PyObject *module, PyObject *arguments)
{
    Py_buffer b[BUFFERS];
    long long most, base_time;
    if (!PyArg_ParseTuple(arguments, "LLy*y*y*y*y*z*z*z*z*z*z*", &most, &base_time, &b[ROWS], &b[KEY_AT], &b[KEY_LENGTH],
            &b[VALUE_AT], &b[VALUE_LENGTH], &b[TIMES], &b[HEADERS], &b[H_KEY_AT], &b[H_KEY_LENGTH], &b[H_VALUE_AT],
            &b[H_VALUE_LENGTH]))
        return NULL;
    PyObject *made = NULL;
    Py_ssize_t all = b[KEY_AT].len / 8, rows = b[ROWS].len / 8, headers = b[H_KEY_AT].len / 8, taken = 0;
    int64_t newest = INT64_MIN, bytes = 0;
    Columns columns = {b[ROWS].buf, {b[KEY_AT].buf, b[KEY_LENGTH].buf}, {b[VALUE_AT].buf, b[VALUE_LENGTH].buf}, b[TIMES].buf,
        base_time, b[HEADERS].buf, {b[H_KEY_AT].buf, b[H_KEY_LENGTH].buf}, {b[H_VALUE_AT].buf, b[H_VALUE_LENGTH].buf}};
    int fits = require_items(&b[KEY_LENGTH], all, 8, "key lengths") && require_items(&b[VALUE_AT], all, 8, "values")
        && require_items(&b[VALUE_LENGTH], all, 8, "value lengths") && require_items(&b[TIMES], all, 8, "times")
        && require_items(&b[HEADERS], all + 1, 8, "header offsets")
        && require_items(&b[H_KEY_LENGTH], headers, 8, "header key lengths")
        && require_items(&b[H_VALUE_AT], headers, 8, "header values")
        && require_items(&b[H_VALUE_LENGTH], headers, 8, "header value lengths");
    for (Py_ssize_t row = 0; fits && row < rows; row++)
        if (columns.rows[row] < 0 || columns.rows[row] >= all) {
            PyErr_Format(PyExc_ValueError, "there is no row %lld", (long long)columns.rows[row]);
            fits = 0;
        }
    for (Py_ssize_t row = 0; fits && columns.header_offsets != NULL && row < all; row++)
        if (columns.header_offsets[row] < 0 || columns.header_offsets[row + 1] < columns.header_offsets[row]
            || columns.header_offsets[row + 1] > headers) {
            PyErr_Format(PyExc_ValueError, "row %zd has headers that are not there", row);
            fits = 0;
        }
    if (fits) {
        Py_BEGIN_ALLOW_THREADS;
        taken = fitting(&columns, rows, most, &bytes);
        Py_END_ALLOW_THREADS;
        PyObject *out = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
        if (out != NULL) {
            Py_BEGIN_ALLOW_THREADS;
            put_records((uint8_t *)PyBytes_AS_STRING(out), &columns, taken, &newest);
            Py_END_ALLOW_THREADS;
            made = Py_BuildValue("NnL", out, taken, (long long)(taken ? newest : base_time));
        }
    }
    for (int buffer = 0; buffer < BUFFERS; buffer++)
        if (b[buffer].obj != NULL)
            PyBuffer_Release(&b[buffer]);
    return made;
}

/* ---- the batch around them ---- */

static void put_big(uint8_t *out, uint64_t number, int bytes)
{
    for (int byte = bytes - 1; byte >= 0; byte--, number >>= 8)
        out[byte] = (uint8_t)number;
}

PyDoc_STRVAR(sealed_doc,
    "sealed(records, attributes, count, base_time, newest_time, producer_id, producer_epoch, sequence)\n\n"
    "The batch: its header, with the checksum, and the records, which may be compressed.");

static PyObject *sealed(PyObject *module, PyObject *arguments)
{
    Py_buffer body;
    int attributes, epoch, sequence, count;
    long long base_time, newest_time, producer_id;
    if (!PyArg_ParseTuple(arguments, "y*iiLLLii", &body, &attributes, &count, &base_time, &newest_time, &producer_id, &epoch, &sequence))
        return NULL;
    PyObject *made = PyBytes_FromStringAndSize(NULL, HEADER_BYTES + body.len);
    if (made != NULL) {
        uint8_t *out = (uint8_t *)PyBytes_AS_STRING(made);
        Py_BEGIN_ALLOW_THREADS;
        put_big(out, 0, 8); /* the broker gives offsets */
        put_big(out + 8, (uint64_t)(HEADER_BYTES - 12 + body.len), 4);
        put_big(out + 12, (uint64_t)-1, 4); /* the leader's epoch, which is not known */
        out[16] = 2;
        put_big(out + 21, (uint64_t)attributes, 2);
        put_big(out + 23, (uint64_t)(count - 1), 4);
        put_big(out + 27, (uint64_t)base_time, 8);
        put_big(out + 35, (uint64_t)newest_time, 8);
        put_big(out + 43, (uint64_t)producer_id, 8);
        put_big(out + 51, (uint64_t)epoch, 2);
        put_big(out + 53, (uint64_t)sequence, 4);
        put_big(out + 57, (uint64_t)count, 4);
        memcpy(out + HEADER_BYTES, body.buf, (size_t)body.len);
        put_big(out + CRC_AT, crc32c_of(out + CHECKED_FROM, (size_t)(HEADER_BYTES - CHECKED_FROM + body.len), 0), 4);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&body);
    return made;
}

static PyMethodDef methods[] = {
    {"crc32c", crc32c, METH_VARARGS, crc32c_doc},
    {"partitions", partitions, METH_VARARGS, partitions_doc},
    {"records", records, METH_VARARGS, records_doc},
    {"sealed", sealed, METH_VARARGS, sealed_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "twophase._record_batches",
    .m_doc = "Kafka's record batches, from columns.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__record_batches(void)
{
    make_crc_tables();
    has_crc = processor_has_crc();
    return PyModuleDef_Init(&module);
}
