/* What the compiled loops share: the memory of arrays, and code for the CPU at hand. */
#ifndef QDEBUG_NATIVE_H
#define QDEBUG_NATIVE_H

#define Py_LIMITED_API 0x030B0000
#include <Python.h>

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

/* What the module offers: histograms.c */
PyObject *count(PyObject *self, PyObject *args);
PyObject *gather(PyObject *self, PyObject *args);
PyObject *portable(PyObject *self, PyObject *args);
/* sums.c */
PyObject *channel_sums(PyObject *self, PyObject *args);
PyObject *row_sums(PyObject *self, PyObject *args);

#endif
