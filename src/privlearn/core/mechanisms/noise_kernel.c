/* Gaussian noise from random words in a few passes: what `noise.by_operations` computes with PyTorch, to the bit.
 *
 * Every operation is rounded as PyTorch rounds it: build with -ffp-contract=off and without -ffast-math. Logarithms,
 * roots, sines and cosines are left to PyTorch, whose last digits are its own.
 */

#include <math.h>
#include <stdint.h>

/* Each pass is compiled for any processor, and for those with AVX2 and fused multiplication; the call chooses. */
#define PASS(name) static inline __attribute__((always_inline)) void name##_pass
#if defined(__x86_64__) && defined(__GNUC__)
#define FOR_EACH_PROCESSOR(name, parameters, arguments)                                      \
    static __attribute__((target("avx2,fma"))) void name##_avx2 parameters {                 \
        name##_pass arguments;                                                               \
    }                                                                                        \
    static void name##_any parameters { name##_pass arguments; }                             \
    void privlearn_##name parameters {                                                       \
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))                 \
            name##_avx2 arguments;                                                           \
        else                                                                                 \
            name##_any arguments;                                                            \
    }
#else
#define FOR_EACH_PROCESSOR(name, parameters, arguments) \
    void privlearn_##name parameters { name##_pass arguments; }
#endif

/* A signed word in double precision, rounded once: both halves are exact. */
static inline __attribute__((always_inline)) double whole(int64_t word) {
    int32_t low = (int32_t)((uint32_t)word ^ 0x80000000u);
    return (double)(int32_t)(word >> 32) * 4294967296.0 + ((double)low + 2147483648.0);
}

static inline __attribute__((always_inline)) double uniform(int64_t word) {
    return whole(word) * 0x1p-64 + (0.5 + 0x1p-53);
}

/* products[i] = u v for uniform u and v in (0, 1]. */
PASS(products)(const int64_t *restrict words, double *restrict products, int64_t fours) {
    for (int64_t i = 0; i < fours; i++) products[i] = uniform(words[i]) * uniform(words[fours + i]);
}
FOR_EACH_PROCESSOR(products, (const int64_t *words, double *products, int64_t fours), (words, products, fours))

/* Squared radii of two pairs of draws for each logarithm, in single precision. */
PASS(squares_single)(const double *restrict logarithms, const int32_t *restrict more, float *restrict squares,
                     int64_t fours) {
    for (int64_t i = 0; i < fours; i++) {
        float size = (float)logarithms[i] * -2.0f;
        float first = size * ((float)more[i] * 0x1p-31f * 0.5f + 0.5f);
        squares[i] = first;
        squares[fours + i] = size - first;
    }
}
FOR_EACH_PROCESSOR(squares_single, (const double *logarithms, const int32_t *more, float *squares, int64_t fours),
                   (logarithms, more, squares, fours))

/* radii x (cos pi t, sin pi t) by polynomials in half the angle, whose coefficients are `_SINE` and `_COSINE`. */
PASS(circles_single)(const float *restrict radii, const int32_t *restrict turns, const float *restrict sine,
                     const float *restrict cosine, float *restrict draws, int64_t pairs) {
    for (int64_t i = 0; i < pairs; i++) {
        float turn = (float)turns[i] * 0x1p-31f, squared = turn * turn;
        float half_sine = squared * sine[0], half_cosine = squared * cosine[0];
        for (int k = 1; k < 4; k++) half_sine = (half_sine + sine[k]) * squared;
        for (int k = 1; k < 5; k++) half_cosine = (half_cosine + cosine[k]) * squared;
        half_sine = (half_sine + sine[4]) * turn;
        half_cosine = half_cosine + cosine[5];
        float reach = radii[i] * half_sine;
        draws[i] = fmaf(-2.0f * reach, half_sine, radii[i]);
        draws[pairs + i] = reach * (half_cosine * 2.0f);
    }
}
FOR_EACH_PROCESSOR(circles_single,
                   (const float *radii, const int32_t *turns, const float *sine, const float *cosine, float *draws,
                    int64_t pairs),
                   (radii, turns, sine, cosine, draws, pairs))

/* Squared radii, and angles, of two pairs of draws for each logarithm in double precision. */
PASS(double)(const double *restrict logarithms, const int64_t *restrict more, double *restrict squares,
             double *restrict angles, int64_t fours) {
    for (int64_t i = 0; i < fours; i++) {
        double size = logarithms[i] * -2.0;
        double first = size * (whole(more[i]) * 0x1p-63 * 0.5 + 0.5);
        squares[i] = first;
        squares[fours + i] = size - first;
    }
    for (int64_t i = 0; i < 2 * fours; i++) angles[i] = whole(more[fours + i]) * 0x1p-63 * 3.14159265358979323846;
}
FOR_EACH_PROCESSOR(double,
                   (const double *logarithms, const int64_t *more, double *squares, double *angles, int64_t fours),
                   (logarithms, more, squares, angles, fours))
