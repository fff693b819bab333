/* The inner loops of the histograms, compiled: see gather.py, which does the same with numpy where
 * no C compiler was at hand at installation, and layout.py for the bins.
 */
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define BLOCK 1024
#define ABS_BITS 0x7FFFFFFF
#define INF_BITS 0x7F800000
#define SPARE 64           /* counters behind the table, for what has no bin */
#define COUNT_SHIFT 40     /* a counter packs a count above and the sum of dropped bits below */
#define FLUSH (1 << 23)    /* elements after which neither part may be full: 2^23 · 2^16 < 2^40 */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

typedef struct {
    double total, total_sq;
    float low, high;
    uint32_t amax;     /* bits of the largest finite magnitude */
    uint32_t smallest; /* bits of the smallest that is not 0, less 1; 2^32 - 1 without any */
    long long zeros, nans, infs;
} Scan;

static const Scan NOTHING = {0, 0, INFINITY, -INFINITY, 0, UINT32_MAX, 0, 0, 0};

static void join(Scan *s, const Scan *b) {
    s->total += b->total;
    s->total_sq += b->total_sq;
    s->low = b->low < s->low ? b->low : s->low;
    s->high = b->high > s->high ? b->high : s->high;
    s->amax = b->amax > s->amax ? b->amax : s->amax;
    s->smallest = b->smallest < s->smallest ? b->smallest : s->smallest;
    s->zeros += b->zeros;
    s->nans += b->nans;
    s->infs += b->infs;
}

static void scan_plainly(Scan *s, const float *x, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++) {
        uint32_t m;
        memcpy(&m, x + i, 4);
        m &= ABS_BITS;
        if (m >= INF_BITS) {
            s->nans += m > INF_BITS;
            s->infs += m == INF_BITS;
            continue;
        }
        Scan one = {x[i], (double)x[i] * x[i], x[i], x[i], m, m - 1, m == 0, 0, 0};
        join(s, &one);
    }
}

/* n is a multiple of LANES, at most BLOCK; false (and s untouched) where NaN or Inf is among it */
CLONES static int scan_block(Scan *s, const float *x, Py_ssize_t n) {
    double sum[LANES] = {0}, sq[LANES] = {0};
    float low[LANES], high[LANES];
    uint32_t amax[LANES] = {0}, smallest[LANES], zeros[LANES] = {0};
    Scan b = NOTHING;
    for (int l = 0; l < LANES; l++) low[l] = high[l] = x[0], smallest[l] = UINT32_MAX;
    for (Py_ssize_t i = 0; i < n; i += LANES) {
        uint32_t bits[LANES];
        memcpy(bits, x + i, sizeof bits);
        for (int l = 0; l < LANES; l++) {
            float v = x[i + l];
            uint32_t m = bits[l] & ABS_BITS, below = m - 1;
            low[l] = v < low[l] ? v : low[l];
            high[l] = v > high[l] ? v : high[l];
            amax[l] = m > amax[l] ? m : amax[l];
            smallest[l] = below < smallest[l] ? below : smallest[l];
            zeros[l] += m == 0;
            sum[l] += v;
            sq[l] += (double)v * v;
        }
    }
    for (int l = 0; l < LANES; l++) {
        Scan lane = {sum[l], sq[l], low[l], high[l], amax[l], smallest[l], zeros[l], 0, 0};
        join(&b, &lane);
    }
    if (b.amax >= INF_BITS) return 0;
    join(s, &b);
    return 1;
}

static void scan_row(Scan *s, const float *x, Py_ssize_t n) {
    Py_ssize_t whole = n / LANES * LANES;
    for (Py_ssize_t i = 0; i < whole; i += BLOCK) {
        Py_ssize_t size = whole - i < BLOCK ? whole - i : BLOCK;
        if (!scan_block(s, x + i, size)) scan_plainly(s, x + i, size);
    }
    scan_plainly(s, x + whole, n - whole);
}

static int floats_of(PyObject *object, Py_buffer *view) {
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS) < 0) return 0;
    if (view->itemsize == 4) return 1;
    PyBuffer_Release(view);
    PyErr_SetString(PyExc_ValueError, "a contiguous float32 array is needed");
    return 0;
}

static PyObject *scan(PyObject *self, PyObject *args) {
    PyObject *values;
    Py_buffer view;
    Py_ssize_t rows;
    Scan all = NOTHING;
    double amax_total = 0;
    long long filled = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "On", &values, &rows) || !floats_of(values, &view)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    Py_ssize_t width = rows > 0 ? view.len / 4 / rows : 0;
    for (Py_ssize_t r = 0; r < rows; r++) {
        Scan row = NOTHING;
        float amax;
        scan_row(&row, (const float *)view.buf + r * width, width);
        memcpy(&amax, &row.amax, 4);
        amax_total += amax;
        filled += row.low <= row.high;
        join(&all, &row);
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return Py_BuildValue("ffLLLddIILd", all.low, all.high, all.zeros, all.nans, all.infs, all.total,
                         all.total_sq, all.amax, all.smallest + 1, filled, amax_total);
}

/* The counter of each of n values, and what is added to it beside the count. */
CLONES static void locate(const float *x, Py_ssize_t n, int top, int first, int spare,
                          int32_t *at, uint32_t *dropped) {
    int start = (top - 5) * 128 - first;
    for (Py_ssize_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        int32_t m = (int32_t)(bits & ABS_BITS), step = top - (m >> 23);
        step = step < 0 ? 0 : step > 4 ? 4 : step;
        int32_t above = (int32_t)((uint32_t)m - ((uint32_t)(top - 1 - step) << 23));
        int32_t counter = 2 * ((above >> (12 + step)) + start) + (int32_t)(bits >> 31);
        at[i] = (uint32_t)m - 1 < INF_BITS - 1 ? counter : spare + (int32_t)(i & (SPARE - 1));
        dropped[i] = (uint32_t)m & ((1u << (12 + step)) - 1);
    }
}

static void tally(uint64_t *counters, const float *x, Py_ssize_t n, int top, int first, int spare) {
    int32_t at[BLOCK];
    uint32_t dropped[BLOCK];
    for (Py_ssize_t i = 0; i < n; i += BLOCK) {
        Py_ssize_t size = n - i < BLOCK ? n - i : BLOCK;
        locate(x + i, size, top, first, spare, at, dropped);
        for (Py_ssize_t j = 0; j < size; j++)
            counters[at[j]] += (1ull << COUNT_SHIFT) + dropped[j];
    }
}

/* Adds the counters to the table's four rows, and clears them. */
static void flush(uint64_t *counters, int64_t *table, Py_ssize_t bins) {
    const uint64_t low = (1ull << COUNT_SHIFT) - 1;
    for (Py_ssize_t b = 0; b < bins; b++)
        for (int sign = 0; sign < 2; sign++) {
            uint64_t c = counters[2 * b + sign];
            table[sign * bins + b] += (int64_t)(c >> COUNT_SHIFT);
            table[(2 + sign) * bins + b] += (int64_t)(c & low);
        }
    memset(counters, 0, (size_t)(2 * bins + SPARE) * sizeof *counters);
}

static PyObject *count(PyObject *self, PyObject *args) {
    PyObject *values, *scratch, *rows;
    Py_buffer x, counters, table;
    int top, first, ready = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OiiOO", &values, &top, &first, &scratch, &rows)) return NULL;
    if (!floats_of(values, &x)) return NULL;
    if (PyObject_GetBuffer(scratch, &counters, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) == 0) {
        if (PyObject_GetBuffer(rows, &table, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) == 0) {
            Py_ssize_t bins = table.len / 32, n = x.len / 4;
            ready = counters.len >= (2 * bins + SPARE) * 8;
            if (ready) {
                Py_BEGIN_ALLOW_THREADS
                for (Py_ssize_t i = 0; i < n; i += FLUSH) {
                    tally(counters.buf, (const float *)x.buf + i, n - i < FLUSH ? n - i : FLUSH,
                          top, first, (int)(2 * bins));
                    flush(counters.buf, table.buf, bins);
                }
                Py_END_ALLOW_THREADS
            } else {
                PyErr_SetString(PyExc_ValueError, "the scratch is too small");
            }
            PyBuffer_Release(&table);
        }
        PyBuffer_Release(&counters);
    }
    PyBuffer_Release(&x);
    if (!ready) return NULL;
    Py_RETURN_NONE;
}

static int bin_of(uint32_t bits, int top) {
    int step = top - (int)(bits >> 23);
    step = step < 0 ? 0 : step > 4 ? 4 : step;
    int32_t above = (int32_t)(bits - ((uint32_t)(top - 1 - step) << 23));
    return (above >> (12 + step)) + (top - 5) * 128;
}

static uint32_t lower_bits(int bin, int top) {
    int linear = bin - (top - 5) * 128;
    float position = (float)linear;
    uint32_t bits;
    if (linear < 128) return (uint32_t)bin << 16;
    memcpy(&bits, &position, 4);
    return bits + ((uint32_t)(top - 4) << 23) - ((uint32_t)(127 + 7) << 23);
}

/* Adds a table laid out for `top` to one laid out for `into_top`, which is no smaller. */
static void add_bins(int64_t *into, Py_ssize_t into_bins, int into_first, int into_top,
                     const int64_t *from, Py_ssize_t bins, int first, int top) {
    for (Py_ssize_t b = 0; b < bins; b++) {
        uint32_t bits = lower_bits(first + (int)b, top);
        int bin = bin_of(bits, into_top), at = bin - into_first;
        int64_t offset = bits - lower_bits(bin, into_top);
        if (at < 0 || at >= into_bins) continue;
        for (int sign = 0; sign < 2; sign++) {
            int64_t n = from[sign * bins + b];
            into[sign * into_bins + at] += n;
            into[(2 + sign) * into_bins + at] += from[(2 + sign) * bins + b] + n * offset;
        }
    }
}

static PyObject *add(PyObject *self, PyObject *args) {
    PyObject *into_rows, *rows;
    Py_buffer into, from;
    int into_first, into_top, first, top;
    (void)self;
    if (!PyArg_ParseTuple(args, "OiiOii", &into_rows, &into_first, &into_top, &rows, &first, &top))
        return NULL;
    if (PyObject_GetBuffer(into_rows, &into, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) < 0) return NULL;
    if (PyObject_GetBuffer(rows, &from, PyBUF_C_CONTIGUOUS) < 0) {
        PyBuffer_Release(&into);
        return NULL;
    }
    add_bins(into.buf, into.len / 32, into_first, into_top, from.buf, from.len / 32, first, top);
    PyBuffer_Release(&from);
    PyBuffer_Release(&into);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"add", add, METH_VARARGS,
     "add(into, into_first, into_top, table, first, top): adds a table to one that covers it."},
    {"scan", scan, METH_VARARGS, "scan(values, samples): see gather.Scan."},
    {"count", count, METH_VARARGS,
     "count(values, top, first, scratch, table): adds to the int64 [4, bins] table the bins from "
     "number `first`, which must hold every finite value that is not 0. `scratch` is zeros."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
