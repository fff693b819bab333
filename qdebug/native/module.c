/* The module `qdebug.native._native`: the functions of histograms.c and sums.c. */
#include "native.h"

static PyMethodDef methods[] = {
    {"portable", portable, METH_VARARGS,
     "portable(only): whether to avoid instructions that only some CPUs have; for tests."},
    {"gather", gather, METH_VARARGS,
     "gather(values, rows, room, top, first, counters, peaks): see calibrators/gather.py."},
    {"count", count, METH_VARARGS,
     "count(values, top, first, counters): see calibrators/gather.py; the counters must hold every "
     "value."},
    {"channel_sums", channel_sums, METH_VARARGS,
     "channel_sums(ref, cand, channels, inner, err, sig): adds (ref - cand)² and ref² of contiguous "
     "arrays [outer, channels, inner], float32 or float16, to the float64 arrays err and sig, "
     "[channels]."},
    {"row_sums", row_sums, METH_VARARGS,
     "row_sums(ref, cand, limit): sums |e|, e², ref², cand², ref·cand, max |e|, |ref|, |cand|, and "
     "the count of |cand| > limit, of two contiguous arrays, float32 or float16."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
