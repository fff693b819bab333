/* The inner loop of the metrics, compiled: one pass over two arrays of floats.
 *
 * Optional: without a C compiler at installation, measure/kernel.py does the same with BLAS, at
 * about a third of the speed. No -ffast-math: loading a library built with it changes how the
 * whole process treats denormal numbers. Sixteen explicit lanes vectorise without it.
 */
#include "native.h"
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define BLOCK 1024 /* elements summed in float before double takes over: 64 in each lane */

typedef struct {
    double abs_err, sq_err, ref_sq, cand_sq, dot;
    float max_abs_err, ref_amax, cand_amax;
    long long clipped;
} Sums;

static double total(const float *lanes) {
    double sum = 0;
    for (int i = 0; i < LANES; i++) sum += lanes[i];
    return sum;
}

static float highest(const float *lanes, float known) {
    for (int i = 0; i < LANES; i++)
        if (lanes[i] > known) known = lanes[i];
    return known;
}

CLONES static void add_block(Sums *s, const float *ref, const float *cand, Py_ssize_t n, float limit) {
    float ae[LANES] = {0}, se[LANES] = {0}, rr[LANES] = {0}, cc[LANES] = {0}, rc[LANES] = {0};
    float md[LANES] = {0}, mr[LANES] = {0}, mc[LANES] = {0};
    int over[LANES] = {0};
    for (Py_ssize_t i = 0; i < n; i += LANES) {
        for (int l = 0; l < LANES; l++) {
            float r = ref[i + l], c = cand[i + l], d = fabsf(r - c), ar = fabsf(r), ac = fabsf(c);
            ae[l] += d;
            se[l] += d * d;
            rr[l] += r * r;
            cc[l] += c * c;
            rc[l] += r * c;
            md[l] = d > md[l] ? d : md[l];
            mr[l] = ar > mr[l] ? ar : mr[l];
            mc[l] = ac > mc[l] ? ac : mc[l];
            over[l] += ac > limit;
        }
    }
    s->abs_err += total(ae);
    s->sq_err += total(se);
    s->ref_sq += total(rr);
    s->cand_sq += total(cc);
    s->dot += total(rc);
    s->max_abs_err = highest(md, s->max_abs_err);
    s->ref_amax = highest(mr, s->ref_amax);
    s->cand_amax = highest(mc, s->cand_amax);
    for (int l = 0; l < LANES; l++) s->clipped += over[l];
}

/* float16 to float32: the exponent rebased; below the normal ones what is added is taken off. */
CLONES static void widen(const uint16_t *x, float *y, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++) {
        uint32_t sign = (uint32_t)(x[i] & 0x8000) << 16, m = (uint32_t)(x[i] & 0x7FFF) << 13;
        uint32_t exponent = m & 0x0F800000, bits = m + (112u << 23), small = bits + (1u << 23);
        float f;
        memcpy(&f, &small, 4);
        f -= 6.103515625e-05f; /* 2^-14 */
        memcpy(&small, &f, 4);
        bits = exponent == 0x0F800000 ? bits + (112u << 23) : exponent ? bits : small;
        bits |= sign;
        memcpy(y + i, &bits, 4);
    }
}

/* `n` values from number `i` on, at most BLOCK: where they are, or widened into `scratch`. */
static const float *floats(const Py_buffer *values, Py_ssize_t i, Py_ssize_t n, float *scratch) {
    if (values->itemsize == 4) return (const float *)values->buf + i;
    widen((const uint16_t *)values->buf + i, scratch, n);
    return scratch;
}

static void add_range(Sums *s, const Py_buffer *ref, const Py_buffer *cand, Py_ssize_t start,
                      Py_ssize_t count, float limit) {
    Py_ssize_t end = start + count, whole = end - count % LANES;
    float r[BLOCK], c[BLOCK];
    for (Py_ssize_t i = start; i < whole; i += BLOCK) {
        Py_ssize_t n = whole - i < BLOCK ? whole - i : BLOCK;
        add_block(s, floats(ref, i, n, r), floats(cand, i, n, c), n, limit);
    }
    if (whole < end) {
        float last_r[LANES] = {0}, last_c[LANES] = {0}; /* zeros add nothing; limit is no less */
        size_t size = (size_t)(end - whole) * sizeof(float);
        memcpy(last_r, floats(ref, whole, end - whole, r), size);
        memcpy(last_c, floats(cand, whole, end - whole, c), size);
        add_block(s, last_r, last_c, LANES, limit);
    }
}

/* Whether two arrays are of as many values, each float32 or float16. */
static int fit(const Py_buffer *ref, const Py_buffer *cand) {
    return (ref->itemsize == 4 || ref->itemsize == 2) &&
           (cand->itemsize == 4 || cand->itemsize == 2) &&
           ref->len / ref->itemsize == cand->len / cand->itemsize;
}

PyObject *row_sums(PyObject *self, PyObject *args) {
    PyObject *arrays[2], *result = NULL;
    Py_buffer b[2];
    double limit;
    Sums s = {0};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOd", &arrays[0], &arrays[1], &limit) || !take(arrays, b, 2, 0))
        return NULL;
    if (fit(&b[0], &b[1])) {
        Py_BEGIN_ALLOW_THREADS
        add_range(&s, &b[0], &b[1], 0, b[0].len / b[0].itemsize, (float)limit);
        Py_END_ALLOW_THREADS
        result = Py_BuildValue("dddddfffL", s.abs_err, s.sq_err, s.ref_sq, s.cand_sq, s.dot,
                               s.max_abs_err, s.ref_amax, s.cand_amax, s.clipped);
    } else {
        PyErr_SetString(PyExc_ValueError, "two arrays of floats of one size are needed");
    }
    drop(b, 2);
    return result;
}

/* Energies of one channel's run of `n` neighbours. (A loop for the two alone was slower.) */
static void add_run(double *err, double *sig, const Py_buffer *ref, const Py_buffer *cand,
                    Py_ssize_t start, Py_ssize_t n) {
    Sums s = {0};
    add_range(&s, ref, cand, start, n, INFINITY);
    *err += s.sq_err;
    *sig += s.ref_sq;
}

/* Channels on the last axis: neighbours belong to different ones. */
CLONES static void add_interleaved(double *err, double *sig, const float *ref, const float *cand,
                                   Py_ssize_t channels) {
    for (Py_ssize_t c = 0; c < channels; c++) {
        float d = ref[c] - cand[c];
        err[c] += (double)(d * d);
        sig[c] += (double)(ref[c] * ref[c]);
    }
}

static void add_channels(double *err, double *sig, const Py_buffer *ref, const Py_buffer *cand,
                         Py_ssize_t channels, Py_ssize_t inner) {
    Py_ssize_t total = ref->len / ref->itemsize, step = inner == 1 ? BLOCK : 1;
    float r[BLOCK], k[BLOCK];
    for (Py_ssize_t start = 0; start < total; start += channels * inner)
        for (Py_ssize_t c = 0; c < channels; c += step) {
            Py_ssize_t n = channels - c < step ? channels - c : step;
            if (inner == 1)
                add_interleaved(err + c, sig + c, floats(ref, start + c, n, r),
                                floats(cand, start + c, n, k), n);
            else
                add_run(err + c, sig + c, ref, cand, start + c * inner, inner);
        }
}

PyObject *channel_sums(PyObject *self, PyObject *args) {
    PyObject *arrays[4];
    Py_buffer b[4];
    Py_ssize_t channels, inner;
    int fits;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOnnOO", &arrays[0], &arrays[1], &channels, &inner, &arrays[2],
                          &arrays[3]))
        return NULL;
    if (!take(arrays, b, 4, 2)) return NULL;
    fits = fit(&b[0], &b[1]) && channels > 0 && inner > 0 && b[2].len == channels * 8 &&
           b[3].len == channels * 8 && b[0].len / b[0].itemsize % (channels * inner) == 0;
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        add_channels(b[2].buf, b[3].buf, &b[0], &b[1], channels, inner);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_SetString(PyExc_ValueError, "two arrays of floats and two float64 [channels] needed");
    }
    drop(b, 4);
    if (!fits) return NULL;
    Py_RETURN_NONE;
}
