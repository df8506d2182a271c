/* The inner loops of checksum.py, which has the same in numpy and says what is computed: the results are equal to the bit.

   It is optional: where it could not be built, numpy does the work, and an epoch takes longer.
   Whoever changes one of the two changes the other; tests/test_checksum.py compares them. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define LANES 2
#define BLOCK_BYTES 64
#define PLACES (BLOCK_BYTES / 8)

static inline uint64_t mixed(uint64_t word)
{
    word = (word ^ (word >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    word = (word ^ (word >> 27)) * UINT64_C(0x94D049BB133111EB);
    return word ^ (word >> 31);
}

typedef struct {
    const uint64_t *restrict lows, *restrict highs; /* LANES × PLACES, the constants of a block's places */
    const uint64_t *length, *tag; /* LANES */
    uint64_t zeros[LANES][PLACES + 1]; /* what all places from n on add if their words are 0 */
} Constants;

static inline uint64_t product(const Constants *constants, int lane, int place, uint64_t word)
{
    uint64_t low = (word & 0xFFFFFFFF) + constants->lows[lane * PLACES + place];
    return low * ((word >> 32) + constants->highs[lane * PLACES + place]);
}

static inline uint64_t word_at(const uint8_t *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

/* Fewer than 8 bytes, and zeros after them: what a copy to a cleared word gives, without a call. */
static inline uint64_t part_at(const uint8_t *bytes, int size)
{
    uint64_t word = 0;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (size >= 4) {
        uint32_t first, last;
        memcpy(&first, bytes, sizeof first);
        memcpy(&last, bytes + size - 4, sizeof last); /* it may overlap the first: the same bytes in the same places */
        word = first | (uint64_t)last << (8 * (size - 4));
    } else if (size > 0) {
        word = bytes[0] | (uint64_t)bytes[size / 2] << (8 * (size / 2)) | (uint64_t)bytes[size - 1] << (8 * (size - 1));
    }
#else
    memcpy(&word, bytes, (size_t)size);
#endif
    return word;
}

static inline void add_whole_block(const Constants *constants, const uint8_t *bytes, uint64_t end, uint64_t *hash)
{
    uint64_t sums[LANES] = {0};
    for (int place = 0; place < PLACES; place++) {
        uint64_t word = word_at(bytes + 8 * place);
        for (int lane = 0; lane < LANES; lane++)
            sums[lane] += product(constants, lane, place, word);
    }
    for (int lane = 0; lane < LANES; lane++)
        hash[lane] += mixed(sums[lane] + end * constants->length[lane] + constants->tag[lane]);
}

static inline void add_block(const Constants *constants, const uint8_t *bytes, int size, uint64_t end, uint64_t *hash)
{
    uint64_t sums[LANES];
    int whole = size / 8, places = (size + 7) / 8;
    for (int lane = 0; lane < LANES; lane++)
        sums[lane] = constants->zeros[lane][places];
    for (int place = 0; place < whole; place++) {
        uint64_t word = word_at(bytes + 8 * place);
        for (int lane = 0; lane < LANES; lane++)
            sums[lane] += product(constants, lane, place, word);
    }
    if (places > whole) {
        uint64_t word = part_at(bytes + 8 * whole, size - 8 * whole);
        for (int lane = 0; lane < LANES; lane++)
            sums[lane] += product(constants, lane, whole, word);
    }
    for (int lane = 0; lane < LANES; lane++)
        hash[lane] += mixed(sums[lane] + end * constants->length[lane] + constants->tag[lane]);
}

/* 0, or 1 + the number of the value that does not lie within the data. */
static Py_ssize_t hash_values(
    const Constants *constants, const uint8_t *data, int64_t bytes, const int64_t *offsets, Py_ssize_t values, uint64_t *out)
{
    for (Py_ssize_t value = 0; value < values; value++) {
        int64_t begin = offsets[value], end = offsets[value + 1];
        if (begin < 0 || end < begin || end > bytes)
            return value + 1;
        uint64_t hash[LANES] = {0};
        const uint8_t *bytes = data + begin;
        int64_t size = end - begin, at = 0;
        for (; size - at >= BLOCK_BYTES; at += BLOCK_BYTES)
            add_whole_block(constants, bytes + at, (uint64_t)(at + BLOCK_BYTES), hash);
        if (at < size || size == 0) /* an empty value has one block, which is empty */
            add_block(constants, bytes + at, (int)(size - at), (uint64_t)size, hash);
        for (int lane = 0; lane < LANES; lane++)
            out[lane * values + value] = hash[lane];
    }
    return 0;
}

static int require_words(const Py_buffer *buffer, Py_ssize_t words, const char *what)
{
    if (buffer->len == words * (Py_ssize_t)sizeof(uint64_t))
        return 1;
    PyErr_Format(PyExc_ValueError, "%s: %zd bytes, and not %zd words", what, buffer->len, words);
    return 0;
}

PyDoc_STRVAR(hash_bytes_doc,
    "hash_bytes(data, offsets, lows, highs, length, tag, out)\n\n"
    "Hash the byte strings data[offsets[n]:offsets[n + 1]] into out, lane by lane. Offsets are int64, all else is uint64.");

static PyObject *hash_bytes(PyObject *module, PyObject *arguments)
{
    Py_buffer data, offsets, lows, highs, length, tag, out;
    if (!PyArg_ParseTuple(
            arguments, "y*y*y*y*y*y*w*", &data, &offsets, &lows, &highs, &length, &tag, &out))
        return NULL;
    Py_ssize_t values = offsets.len / (Py_ssize_t)sizeof(int64_t) - 1, wrong = -1;
    if (require_words(&offsets, values + 1, "offsets") && require_words(&lows, LANES * PLACES, "lows")
        && require_words(&highs, LANES * PLACES, "highs") && require_words(&length, LANES, "length")
        && require_words(&tag, LANES, "tag") && require_words(&out, LANES * values, "out")) {
        Constants constants = {lows.buf, highs.buf, length.buf, tag.buf, {{0}}};
        for (int lane = 0; lane < LANES; lane++)
            for (int place = PLACES - 1; place >= 0; place--)
                constants.zeros[lane][place] = constants.zeros[lane][place + 1] + product(&constants, lane, place, 0);
        Py_BEGIN_ALLOW_THREADS;
        wrong = hash_values(&constants, data.buf, data.len, offsets.buf, values, out.buf);
        Py_END_ALLOW_THREADS;
        if (wrong > 0)
            PyErr_Format(PyExc_ValueError, "value %zd does not lie within the data", wrong - 1);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&lows);
    PyBuffer_Release(&highs);
    PyBuffer_Release(&length);
    PyBuffer_Release(&tag);
    PyBuffer_Release(&out);
    if (wrong != 0)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(mix_into_doc, "mix_into(state, hashes)\n\nAdd the hashes to the state and mix it, in place. Both are uint64.");

static PyObject *mix_into(PyObject *module, PyObject *arguments)
{
    Py_buffer state, hashes;
    if (!PyArg_ParseTuple(arguments, "w*y*", &state, &hashes))
        return NULL;
    int fits = require_words(&hashes, state.len / (Py_ssize_t)sizeof(uint64_t), "hashes");
    if (fits) {
        Py_BEGIN_ALLOW_THREADS;
        uint64_t *words = state.buf;
        const uint64_t *added = hashes.buf;
        for (Py_ssize_t place = 0; place < state.len / (Py_ssize_t)sizeof(uint64_t); place++)
            words[place] = mixed(words[place] + added[place]);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&state);
    PyBuffer_Release(&hashes);
    if (!fits)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"hash_bytes", hash_bytes, METH_VARARGS, hash_bytes_doc},
    {"mix_into", mix_into, METH_VARARGS, mix_into_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "twophase._row_hashes",
    .m_doc = "The inner loops of twophase.checksum.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__row_hashes(void) { return PyModuleDef_Init(&module); }
