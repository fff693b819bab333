/* The inner loops of the histograms, compiled: see gather.py, which does the same with numpy where
 * no C compiler was at hand at installation, and layout.py for the bins.
 */
#include "../native.h"
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define BLOCK 1024
#define ABS_BITS 0x7FFFFFFF
#define INF_BITS 0x7F800000
#define SPARE 64           /* counters behind the table, for what has no bin */
#define COUNT_SHIFT 40     /* a count above, the sum of dropped bits below */

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
CLONES static int scan_lanes(Scan *s, const float *x, Py_ssize_t n) {
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

static Scan scan_block(const float *x, Py_ssize_t n) {
    Scan s = NOTHING;
    Py_ssize_t whole = n / LANES * LANES;
    if (whole && !scan_lanes(&s, x, whole)) scan_plainly(&s, x, whole);
    scan_plainly(&s, x + whole, n - whole);
    return s;
}

typedef struct {
    uint64_t *counters; /* of positive values by bin, of negative ones, and the spare */
    Py_ssize_t bins;
    int top, first;
} Bins;

/* The counter of each of n values, and what is added to it beside the count. Zeros and whatever
 * has no bin go to the spare counters: NaN and Inf among it, since bins end with top's octave. */
CLONES static void locate(const float *x, Py_ssize_t n, int top, int first, int32_t bins,
                          uint32_t *at, uint32_t *dropped) {
    int start = (top - 5) * 128 - first;
    for (Py_ssize_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        int32_t m = (int32_t)(bits & ABS_BITS), step = top - (m >> 23);
        step = step < 0 ? 0 : step > 4 ? 4 : step;
        int32_t above = (int32_t)((uint32_t)m - ((uint32_t)(top - 1 - step) << 23));
        int32_t bin = (above >> (12 + step)) + start, side = (int32_t)bits < 0 ? bins : 0;
        int32_t spare = 2 * bins + (int32_t)(i & (SPARE - 1));
        at[i] = (uint32_t)(m && (uint32_t)bin < (uint32_t)bins ? side + bin : spare);
        dropped[i] = (uint32_t)m & ((1u << (12 + step)) - 1);
    }
}

/* Four at a time, all read before any is added: half as long again otherwise. */
static void scatter(uint64_t *counters, const uint32_t *at, const uint32_t *dropped, Py_ssize_t n) {
    const uint64_t one = 1ull << COUNT_SHIFT;
    Py_ssize_t j = 0;
    for (; j + 4 <= n; j += 4) {
        uint32_t a = at[j], b = at[j + 1], c = at[j + 2], d = at[j + 3];
        uint64_t add_a = one + dropped[j], add_b = one + dropped[j + 1];
        uint64_t add_c = one + dropped[j + 2], add_d = one + dropped[j + 3];
        counters[a] += add_a;
        counters[b] += add_b;
        counters[c] += add_c;
        counters[d] += add_d;
    }
    for (; j < n; j++) counters[at[j]] += one + dropped[j];
}

static void tally(const Bins *b, const float *x, Py_ssize_t n) {
    uint32_t at[BLOCK], dropped[BLOCK];
    for (Py_ssize_t i = 0; i < n; i += BLOCK) {
        Py_ssize_t size = n - i < BLOCK ? n - i : BLOCK;
        locate(x + i, size, b->top, b->first, (int32_t)b->bins, at, dropped);
        scatter(b->counters, at, dropped, size);
    }
}

static int bin_of(uint32_t bits, int top) {
    int step = top - (int)(bits >> 23);
    step = step < 0 ? 0 : step > 4 ? 4 : step;
    int32_t above = (int32_t)(bits - ((uint32_t)(top - 1 - step) << 23));
    return (above >> (12 + step)) + (top - 5) * 128;
}

static int covers(const Bins *b, const Scan *s) {
    if (s->amax == 0) return 1;
    return b->bins && bin_of(s->smallest + 1, b->top) >= b->first &&
           bin_of(s->amax, b->top) - b->first < b->bins;
}

/* Whether the arrays are of the types that are needed; ValueError where not. */
static int fit(const Py_buffer *values, const Py_buffer *counters) {
    if (values->itemsize != 4)
        PyErr_SetString(PyExc_ValueError, "a contiguous float32 array is needed");
    else if (counters->itemsize != 8 || counters->len / 8 < SPARE)
        PyErr_SetString(PyExc_ValueError, "there are too few counters, or they are not uint64");
    else
        return 1;
    return 0;
}

static Bins bins_of(const Py_buffer *counters, int top, int first) {
    return (Bins){counters->buf, (counters->len / 8 - SPARE) / 2, top, first};
}

typedef struct {
    Scan all;
    double peak_total;
    long long filled;
    Py_ssize_t tallied;
} Gathered;

static Gathered gather_rows(const float *x, Py_ssize_t rows, Py_ssize_t width, Py_ssize_t room,
                            const Bins *bins, float *peaks) {
    Gathered g = {NOTHING, 0, 0, 0};
    int open = 1;
    for (Py_ssize_t r = 0; r < rows; r++) {
        const float *row = x + r * width;
        Scan s = NOTHING;
        for (Py_ssize_t i = 0; i < width; i += BLOCK) {
            Py_ssize_t n = width - i < BLOCK ? width - i : BLOCK;
            Scan b = scan_block(row + i, n);
            open = open && g.tallied + n <= room && covers(bins, &b);
            if (open) tally(bins, row + i, n), g.tallied += n;
            join(&s, &b);
        }
        memcpy(peaks + r, &s.amax, 4);
        g.peak_total += peaks[r];
        g.filled += s.low <= s.high;
        join(&g.all, &s);
    }
    return g;
}

static PyObject *gather(PyObject *self, PyObject *args) {
    PyObject *arrays[3], *result = NULL;
    Py_buffer b[3]; /* the values, the counters and each row's peak */
    Py_ssize_t rows, room;
    int top, first;
    (void)self;
    if (!PyArg_ParseTuple(args, "OnniiOO", &arrays[0], &rows, &room, &top, &first, &arrays[1],
                          &arrays[2]))
        return NULL;
    if (!take(arrays, b, 3, 2)) return NULL;
    if (fit(&b[0], &b[1])) {
        if (rows > 0 && b[2].len == rows * 4) {
            Bins bins = bins_of(&b[1], top, first);
            Gathered g;
            Py_BEGIN_ALLOW_THREADS
            g = gather_rows(b[0].buf, rows, b[0].len / 4 / rows, room, &bins, b[2].buf);
            Py_END_ALLOW_THREADS
            result = Py_BuildValue("ffLLLddIILdn", g.all.low, g.all.high, g.all.zeros, g.all.nans,
                                   g.all.infs, g.all.total, g.all.total_sq, g.all.amax,
                                   g.all.smallest + 1, g.filled, g.peak_total, g.tallied);
        } else {
            PyErr_SetString(PyExc_ValueError, "there must be a place for each row's peak");
        }
    }
    drop(b, 3);
    return result;
}

static PyObject *count(PyObject *self, PyObject *args) {
    PyObject *arrays[2];
    Py_buffer b[2];
    int top, first, fits;
    (void)self;
    if (!PyArg_ParseTuple(args, "OiiO", &arrays[0], &top, &first, &arrays[1])) return NULL;
    if (!take(arrays, b, 2, 1)) return NULL;
    fits = fit(&b[0], &b[1]);
    if (fits) {
        Bins bins = bins_of(&b[1], top, first);
        Py_BEGIN_ALLOW_THREADS
        tally(&bins, b[0].buf, b[0].len / 4);
        Py_END_ALLOW_THREADS
    }
    drop(b, 2);
    if (!fits) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"gather", gather, METH_VARARGS,
     "gather(values, rows, room, top, first, counters, peaks): see gather.gather."},
    {"count", count, METH_VARARGS,
     "count(values, top, first, counters): see gather.count; the counters must hold every value."},
    {NULL, NULL, 0, NULL},
};

MODULE(methods)
