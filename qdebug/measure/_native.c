/* The inner loop of the metrics, compiled: one pass over two float32 arrays.
 *
 * Optional: where no C compiler was at hand at installation, kernel.py does the same with BLAS, at
 * about a third of the speed. No -ffast-math: loading a library built with it changes how the
 * whole process treats denormal numbers. Sixteen explicit lanes vectorise without it.
 */
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>

#define LANES 16
#define BLOCK 1024 /* elements summed in float before double takes over: 64 in each lane */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

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

static void add_all(Sums *s, const float *ref, const float *cand, Py_ssize_t n, float limit) {
    Py_ssize_t whole = n / LANES * LANES;
    for (Py_ssize_t i = 0; i < whole; i += BLOCK)
        add_block(s, ref + i, cand + i, whole - i < BLOCK ? whole - i : BLOCK, limit);
    if (whole < n) {
        float r[LANES] = {0}, c[LANES] = {0}; /* zeros add nothing; a limit is never negative */
        for (Py_ssize_t i = whole; i < n; i++) {
            r[i - whole] = ref[i];
            c[i - whole] = cand[i];
        }
        add_block(s, r, c, LANES, limit);
    }
}

static PyObject *row_sums(PyObject *self, PyObject *args) {
    PyObject *first, *second, *result = NULL;
    Py_buffer ref, cand;
    double limit;
    Sums s = {0};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOd", &first, &second, &limit)) return NULL;
    if (PyObject_GetBuffer(first, &ref, PyBUF_C_CONTIGUOUS) < 0) return NULL;
    if (PyObject_GetBuffer(second, &cand, PyBUF_C_CONTIGUOUS) == 0) {
        if (ref.len == cand.len && ref.itemsize == 4 && cand.itemsize == 4) {
            Py_BEGIN_ALLOW_THREADS
            add_all(&s, ref.buf, cand.buf, ref.len / 4, (float)limit);
            Py_END_ALLOW_THREADS
            result = Py_BuildValue("dddddfffL", s.abs_err, s.sq_err, s.ref_sq, s.cand_sq, s.dot,
                                   s.max_abs_err, s.ref_amax, s.cand_amax, s.clipped);
        } else {
            PyErr_SetString(PyExc_ValueError, "two float32 arrays of one size are needed");
        }
        PyBuffer_Release(&cand);
    }
    PyBuffer_Release(&ref);
    return result;
}

/* Energies of one channel's run of `n` neighbours. (A loop for the two alone was slower.) */
static void add_run(double *err, double *sig, const float *ref, const float *cand, Py_ssize_t n) {
    Sums s = {0};
    add_all(&s, ref, cand, n, INFINITY);
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

static PyObject *channel_sums(PyObject *self, PyObject *args) {
    PyObject *objects[4];
    Py_buffer b[4];
    Py_ssize_t channels, inner;
    int held = 0, fits;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOnnOO", &objects[0], &objects[1], &channels, &inner, &objects[2],
                          &objects[3]))
        return NULL;
    for (; held < 4; held++)
        if (PyObject_GetBuffer(objects[held], &b[held],
                               PyBUF_C_CONTIGUOUS | (held > 1 ? PyBUF_WRITABLE : 0)) < 0)
            break;
    fits = held == 4 && channels > 0 && inner > 0 && b[0].len == b[1].len && b[0].itemsize == 4 &&
           b[1].itemsize == 4 && b[0].len / 4 % (channels * inner) == 0 &&
           b[2].len == channels * 8 && b[3].len == channels * 8;
    if (fits) {
        const float *ref = b[0].buf, *cand = b[1].buf, *end = ref + b[0].len / 4;
        double *err = b[2].buf, *sig = b[3].buf;
        Py_BEGIN_ALLOW_THREADS
        for (; ref < end; ref += channels * inner, cand += channels * inner) {
            if (inner == 1) {
                add_interleaved(err, sig, ref, cand, channels);
            } else {
                for (Py_ssize_t c = 0; c < channels; c++)
                    add_run(err + c, sig + c, ref + c * inner, cand + c * inner, inner);
            }
        }
        Py_END_ALLOW_THREADS
    } else if (held == 4) {
        PyErr_SetString(PyExc_ValueError, "two float32 arrays and two float64 [channels] needed");
    }
    while (held-- > 0) PyBuffer_Release(&b[held]);
    if (!fits) return NULL;
    return Py_BuildValue("");
}

static PyMethodDef methods[] = {
    {"channel_sums", channel_sums, METH_VARARGS,
     "channel_sums(ref, cand, channels, inner, err, sig): adds (ref - cand)² and ref² of contiguous "
     "float32 arrays [outer, channels, inner] to the float64 arrays err and sig, [channels]."},
    {"row_sums", row_sums, METH_VARARGS,
     "row_sums(ref, cand, limit): sums |e|, e², ref², cand², ref·cand, max |e|, |ref|, |cand|, and "
     "the count of |cand| > limit, of two contiguous float32 arrays."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
