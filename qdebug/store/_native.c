/* float32 to float16, compiled: ties to even, as the IEEE standard and numpy round.
 *
 * Optional: where no C compiler was at hand at installation, rows.py has numpy do it, at a
 * twentieth of the speed.
 */
#include "../native.h"
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define X86 1
#endif

#define ABS_BITS 0x7FFFFFFF
#define INF_BITS 0x7F800000
#define OVERFLOW_BITS 0x477FF000 /* 65520: from half way between the largest float16 and the next */
#define NORMAL_BITS 0x38800000   /* 2^-14, the smallest normal float16 */

static uint16_t half_of(uint32_t bits) {
    uint32_t sign = bits >> 16 & 0x8000, m = bits & ABS_BITS;
    if (m > INF_BITS) return (uint16_t)(sign | 0x7E00 | (m >> 13 & 0x3FF));
    if (m >= OVERFLOW_BITS) return (uint16_t)(sign | 0x7C00);
    if (m < NORMAL_BITS) { /* in [0.5, 1) a float32 steps by 2^-24, as a subnormal float16 does */
        float shifted;
        memcpy(&shifted, &m, 4);
        shifted += 0.5f;
        memcpy(&m, &shifted, 4);
        return (uint16_t)(sign | (m - 0x3F000000));
    }
    /* exponent bias 15 in place of 127; half a step added, less one bit where that makes a tie odd */
    m += 0xFFF + (m >> 13 & 1) - (112u << 23);
    return (uint16_t)(sign | m >> 13);
}

/* 1 where a finite value became infinite */
static int narrow_plainly(const float *x, uint16_t *y, Py_ssize_t n) {
    int over = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        uint32_t bits, m;
        memcpy(&bits, x + i, 4);
        m = bits & ABS_BITS;
        y[i] = half_of(bits);
        over |= m >= OVERFLOW_BITS && m < INF_BITS;
    }
    return over;
}

#ifdef X86
/* n is a multiple of 8. (No compiler at hand made the loop above this fast by itself.) */
__attribute__((target("avx2,f16c"))) static int narrow_f16c(const float *x, uint16_t *y,
                                                             Py_ssize_t n) {
    const __m256i magnitude = _mm256_set1_epi32(ABS_BITS), inf = _mm256_set1_epi32(INF_BITS);
    const __m256i largest = _mm256_set1_epi32(OVERFLOW_BITS - 1);
    __m256i over = _mm256_setzero_si256();
    for (Py_ssize_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        __m256i m = _mm256_and_si256(_mm256_castps_si256(v), magnitude);
        over = _mm256_or_si256(over, _mm256_and_si256(_mm256_cmpgt_epi32(m, largest),
                                                      _mm256_cmpgt_epi32(inf, m)));
        _mm_storeu_si128((__m128i *)(y + i), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
    return !_mm256_testz_si256(over, over);
}
#endif

static int narrow_all(const float *x, uint16_t *y, Py_ssize_t n) {
    Py_ssize_t whole = 0;
    int over = 0;
#ifdef X86
    if (__builtin_cpu_supports("avx2")) { /* whatever has AVX2 has F16C, whose name GCC 10 lacks */
        whole = n / 8 * 8;
        over = narrow_f16c(x, y, whole);
    }
#endif
    return over | narrow_plainly(x + whole, y + whole, n - whole);
}

static PyObject *narrow(PyObject *self, PyObject *args) {
    PyObject *arrays[2];
    Py_buffer b[2];
    int over = 0, fits;
    (void)self;
    if (!PyArg_ParseTuple(args, "OO", &arrays[0], &arrays[1]) || !take(arrays, b, 2, 1))
        return NULL;
    fits = b[0].itemsize == 4 && b[1].itemsize == 2 && b[0].len == 2 * b[1].len;
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        over = narrow_all(b[0].buf, b[1].buf, b[0].len / 4);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_SetString(PyExc_ValueError, "a float32 and a float16 array of one size are needed");
    }
    drop(b, 2);
    return fits ? PyBool_FromLong(over) : NULL;
}

static PyMethodDef methods[] = {
    {"narrow", narrow, METH_VARARGS,
     "narrow(values, into): rounds contiguous float32 values into a float16 array of the same "
     "size; True where a finite value became infinite."},
    {NULL, NULL, 0, NULL},
};

MODULE(methods)
