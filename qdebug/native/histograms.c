/* The module `qdebug.native._native`: the inner loops of the calibration's histograms.
 *
 * See calibrators/gather.py, which does the same with numpy where no C compiler was at hand at
 * installation, and calibrators/histogram.py for the bins. No -ffast-math: loading a library built
 * with it changes how the whole process treats denormal numbers. Sixteen explicit lanes vectorise
 * without it.
 */
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Of a function marked so, the variant for this CPU is chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

static inline void drop(Py_buffer *views, int count) {
    while (count-- > 0) PyBuffer_Release(&views[count]);
}

/* The memory of `count` contiguous arrays, the last `outputs` of them to be written. Where one is
 * not contiguous or read-only: 0, nothing held, and the exception set. */
static inline int take(PyObject **arrays, Py_buffer *views, int count, int outputs) {
    for (int i = 0; i < count; i++) {
        int flags = PyBUF_C_CONTIGUOUS | (i >= count - outputs ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(arrays[i], &views[i], flags) < 0) {
            drop(views, i);
            return 0;
        }
    }
    return 1;
}

#define LANES 16
#define BLOCK 2048
#define ABS_BITS 0x7FFFFFFF
#define INF_BITS 0x7F800000
#define SPARE 64           /* counters behind the table, for what has no bin */
#define COUNT_SHIFT 40     /* a count above, the sum of dropped bits below */
#define ONE (1ull << COUNT_SHIFT)
#define WORD_SHIFT 16      /* a counter's number above, dropped bits below: 12 to 16 of them */

typedef struct {
    double total_sq;
    float low, high;
    uint32_t amax;     /* bits of the largest finite magnitude */
    uint32_t smallest; /* bits of the smallest that is not 0, less 1; 2^32 - 1 without any */
    long long nans, infs;
} Scan;

static const Scan NOTHING = {0, INFINITY, -INFINITY, 0, UINT32_MAX, 0, 0};

static void join(Scan *s, const Scan *b) {
    s->total_sq += b->total_sq;
    s->low = b->low < s->low ? b->low : s->low;
    s->high = b->high > s->high ? b->high : s->high;
    s->amax = b->amax > s->amax ? b->amax : s->amax;
    s->smallest = b->smallest < s->smallest ? b->smallest : s->smallest;
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
        Scan one = {(double)x[i] * x[i], x[i], x[i], m, m - 1, 0, 0};
        join(s, &one);
    }
}

/* n is a multiple of LANES, at most BLOCK; false (and s untouched) where NaN or Inf is among it */
CLONES static int scan_lanes(Scan *s, const float *x, Py_ssize_t n) {
    double sq[LANES] = {0};
    float low[LANES], high[LANES];
    uint32_t amax[LANES] = {0}, smallest[LANES];
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
            sq[l] += (double)v * v;
        }
    }
    for (int l = 0; l < LANES; l++) {
        Scan lane = {sq[l], low[l], high[l], amax[l], smallest[l], 0, 0};
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

/* The number of the bin of a magnitude's bits, from b->first on, and how many bits it drops. Zeros
 * and whatever has no bin are to be left out: NaN and Inf among it, as bins end with top's octave. */
static inline int32_t bin_in(const Bins *b, int32_t bits, int *dropped) {
    int step = b->top - (bits >> 23);
    step = step < 0 ? 0 : step > 4 ? 4 : step;
    *dropped = 12 + step;
    int32_t above = (int32_t)((uint32_t)bits - ((uint32_t)(b->top - 1 - step) << 23));
    return (above >> *dropped) + (b->top - 5) * 128 - b->first;
}

/* A word for each value: the number of its counter and the bits that it drops. What is to be left
 * out goes to the spare counters: leaving it out would take longer. */
CLONES static void pack(const Bins *b, const float *x, Py_ssize_t n, uint32_t *words) {
    const Bins bins = *b;
    const int32_t end = (int32_t)bins.bins;
    for (Py_ssize_t i = 0; i < n; i++) {
        uint32_t bits;
        int dropped;
        memcpy(&bits, x + i, 4);
        int32_t m = (int32_t)(bits & ABS_BITS), bin = bin_in(&bins, m, &dropped);
        int32_t at = bin + ((int32_t)bits < 0 ? end : 0);
        at = m && (uint32_t)bin < (uint32_t)end ? at : 2 * end + (int32_t)(i & (SPARE - 1));
        words[i] = (uint32_t)at << WORD_SHIFT | ((uint32_t)m & ((1u << dropped) - 1));
    }
}

/* Four at a time, all read before any is added: half as long again otherwise. */
static void scatter(uint64_t *counters, const uint32_t *words, Py_ssize_t n) {
    Py_ssize_t j = 0;
#pragma GCC unroll 4
    for (; j + 4 <= n; j += 4) {
        uint32_t a = words[j], b = words[j + 1], c = words[j + 2], d = words[j + 3];
        counters[a >> WORD_SHIFT] += ONE + (uint16_t)a;
        counters[b >> WORD_SHIFT] += ONE + (uint16_t)b;
        counters[c >> WORD_SHIFT] += ONE + (uint16_t)c;
        counters[d >> WORD_SHIFT] += ONE + (uint16_t)d;
    }
    for (; j < n; j++) counters[words[j] >> WORD_SHIFT] += ONE + (uint16_t)words[j];
}

/* Counters have numbers that fit a word, unless magnitudes lie over 220 octaves apart. */
static int fit_words(const Bins *b) { return 2 * b->bins + SPARE <= 1 << (32 - WORD_SHIFT); }

static void tally_plainly(const Bins *b, const float *x, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++) {
        uint32_t bits;
        int dropped;
        memcpy(&bits, x + i, 4);
        int32_t m = (int32_t)(bits & ABS_BITS), bin = bin_in(b, m, &dropped);
        if (!m || bin < 0 || bin >= b->bins) continue;
        b->counters[((int32_t)bits < 0 ? b->bins : 0) + bin] += ONE + (m & ((1 << dropped) - 1));
    }
}

static void tally(const Bins *b, const float *x, Py_ssize_t n) {
    uint32_t words[BLOCK];
    if (!fit_words(b)) tally_plainly(b, x, n), n = 0;
    for (Py_ssize_t i = 0; i < n; i += BLOCK) {
        Py_ssize_t size = n - i < BLOCK ? n - i : BLOCK;
        pack(b, x + i, size, words);
        scatter(b->counters, words, size);
    }
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_AVX512 (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
#define EACH(value) _mm512_set1_epi32((int)(value))

/* scan_block and pack in one, which takes less time, for n values: a multiple of LANES, at most
 * BLOCK. What is to be left out is, which a compiler does not find by itself: after a ReLU half of
 * the counting is saved. Returns the number of words; LANES more may be overwritten. The first bin
 * must not be 0, the zeros'; with NaN or Inf (s->amax tells) the words are of no use. */
__attribute__((target("avx512f,avx512dq"))) static Py_ssize_t
scan_and_pack(const Bins *b, const float *x, Py_ssize_t n, uint32_t *words, Scan *s) {
    const __m512i none = _mm512_setzero_si512(), ones = EACH(-1), bins = EACH(b->bins);
    const __m512i floor = EACH((b->top - 4) << 23), start = EACH((b->top - 5) * 128 - b->first);
    const __m512i most = EACH(b->top + 12), hidden = EACH(1 << 23);
    __m512 low = _mm512_set1_ps(INFINITY), high = _mm512_set1_ps(-INFINITY);
    __m512i amax = none, smallest = ones;
    __m512d sq = _mm512_setzero_pd(), sq_upper = sq;
    Py_ssize_t kept = 0;
    for (Py_ssize_t i = 0; i < n; i += LANES) {
        __m512 v = _mm512_loadu_ps(x + i);
        _mm_prefetch((const char *)(x + i + BLOCK), _MM_HINT_T1); /* the next block */
        __m512i bits = _mm512_castps_si512(v), m = _mm512_and_si512(bits, EACH(ABS_BITS));
        low = _mm512_min_ps(low, v);
        high = _mm512_max_ps(high, v);
        amax = _mm512_max_epu32(amax, m);
        smallest = _mm512_min_epu32(smallest, _mm512_add_epi32(m, ones));
        __m512d lower = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
        __m512d upper = _mm512_cvtps_pd(
            _mm512_extractf32x8_ps(v, 1));
        sq = _mm512_fmadd_pd(lower, lower, sq);
        sq_upper = _mm512_fmadd_pd(upper, upper, sq_upper);

        __m512i exponent = _mm512_srli_epi32(_mm512_max_epu32(m, floor), 23);
        __m512i dropped = _mm512_sub_epi32(most, exponent);
        __m512i above = _mm512_sub_epi32(m, _mm512_slli_epi32(exponent, 23));
        above = _mm512_add_epi32(above, hidden);
        __m512i bin = _mm512_add_epi32(_mm512_srav_epi32(above, dropped), start);
        __mmask16 keep = _mm512_cmplt_epu32_mask(bin, bins);
        bin = _mm512_mask_add_epi32(bin, _mm512_movepi32_mask(bits), bin, bins);
        /* bin << 16 | (m & ~(-1 << dropped)) */
        __m512i word = _mm512_ternarylogic_epi32(_mm512_slli_epi32(bin, WORD_SHIFT), m,
                                                 _mm512_sllv_epi32(ones, dropped), 0xF4);
        _mm512_storeu_si512(words + kept, _mm512_maskz_compress_epi32(keep, word));
        kept += __builtin_popcount(keep);
    }
    double lanes[LANES];
    _mm512_storeu_pd(lanes, sq);
    _mm512_storeu_pd(lanes + LANES / 2, sq_upper);
    for (int l = 0; l < LANES; l++) s->total_sq += lanes[l];
    s->low = _mm512_reduce_min_ps(low);
    s->high = _mm512_reduce_max_ps(high);
    s->amax = _mm512_reduce_max_epu32(amax);
    s->smallest = _mm512_reduce_min_epu32(smallest);
    return kept;
}
#else
#define HAS_AVX512 0
#define scan_and_pack(b, x, n, words, s) 0
#endif

static int covers(const Bins *b, const Scan *s) {
    int dropped;
    if (s->amax == 0) return 1;
    return b->bins && bin_in(b, (int32_t)s->smallest + 1, &dropped) >= 0 &&
           bin_in(b, (int32_t)s->amax, &dropped) < b->bins;
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

static int portable_only;

/* Scan n values, at most BLOCK, and count them if `open` and each has a bin; whether they were. */
static int gather_block(const Bins *bins, const float *x, Py_ssize_t n, int open, Scan *s) {
    uint32_t words[BLOCK + LANES];
    Py_ssize_t kept = 0;
    int packed = open && HAS_AVX512 && !portable_only && bins->first > 0 && fit_words(bins);
    Py_ssize_t whole = packed ? n / LANES * LANES : 0;
    *s = NOTHING;
    if (packed) kept = scan_and_pack(bins, x, whole, words, s);
    packed = packed && s->amax < INF_BITS;
    if (packed)
        scan_plainly(s, x + whole, n - whole); /* as scan_block has it, to the last digit */
    else
        *s = scan_block(x, n), whole = 0;
    if (!open || !covers(bins, s)) return 0;
    if (packed) scatter(bins->counters, words, kept);
    tally(bins, x + whole, n - whole);
    return 1;
}

static Gathered gather_rows(const float *x, Py_ssize_t rows, Py_ssize_t width, Py_ssize_t room,
                            const Bins *bins, float *peaks) {
    Gathered g = {NOTHING, 0, 0, 0};
    int open = 1;
    for (Py_ssize_t r = 0; r < rows; r++) {
        const float *row = x + r * width;
        Scan s = NOTHING;
        for (Py_ssize_t i = 0; i < width; i += BLOCK) {
            Py_ssize_t n = width - i < BLOCK ? width - i : BLOCK;
            Scan b;
            open = gather_block(bins, row + i, n, open && g.tallied + n <= room, &b);
            g.tallied += open ? n : 0;
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
            result = Py_BuildValue("ffLLdIILdn", g.all.low, g.all.high, g.all.nans, g.all.infs,
                                   g.all.total_sq, g.all.amax, g.all.smallest + 1, g.filled,
                                   g.peak_total, g.tallied);
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

static PyObject *portable(PyObject *self, PyObject *args) {
    (void)self;
    if (!PyArg_ParseTuple(args, "p", &portable_only)) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"portable", portable, METH_VARARGS,
     "portable(only): whether to avoid instructions that only some CPUs have; for tests."},
    {"gather", gather, METH_VARARGS,
     "gather(values, rows, room, top, first, counters, peaks): see calibrators/gather.py."},
    {"count", count, METH_VARARGS,
     "count(values, top, first, counters): see calibrators/gather.py; the counters must hold every "
     "value."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
