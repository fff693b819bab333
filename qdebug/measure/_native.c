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

static PyMethodDef methods[] = {
    {"row_sums", row_sums, METH_VARARGS,
     "row_sums(ref, cand, limit): sums |e|, e², ref², cand², ref·cand, max |e|, |ref|, |cand|, and "
     "the count of |cand| > limit, of two contiguous float32 arrays."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
