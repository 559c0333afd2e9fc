/* Gaussian noise from random words in a few passes: what `noise.gaussian` computes with PyTorch, to the bit.
 *
 * Every operation is rounded as PyTorch rounds it: build with -ffp-contract=off and without -ffast-math. Logarithms,
 * roots, sines and cosines are left to PyTorch, whose last digits are its own.
 */

#include <math.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

/* A signed word in double precision, rounded once: both halves are exact. */
static inline double whole(int64_t word) {
    int32_t low = (int32_t)((uint32_t)word ^ 0x80000000u);
    return (double)(int32_t)(word >> 32) * 4294967296.0 + ((double)low + 2147483648.0);
}

static inline double uniform(int64_t word) { return whole(word) * 0x1p-64 + (0.5 + 0x1p-53); }

/* products[i] = u v for uniform u and v in (0, 1]. */
FOR_EACH_PROCESSOR
void privlearn_products(const int64_t *restrict words, double *restrict products, int64_t fours) {
    for (int64_t i = 0; i < fours; i++) products[i] = uniform(words[i]) * uniform(words[fours + i]);
}

/* Squared radii of two pairs of draws for each logarithm, in single precision. */
FOR_EACH_PROCESSOR
void privlearn_squares_single(const double *restrict logarithms, const int32_t *restrict more, float *restrict squares,
                              int64_t fours) {
    for (int64_t i = 0; i < fours; i++) {
        float size = (float)logarithms[i] * -2.0f;
        float first = size * ((float)more[i] * 0x1p-31f * 0.5f + 0.5f);
        squares[i] = first;
        squares[fours + i] = size - first;
    }
}

/* radii x (cos pi t, sin pi t) by polynomials in half the angle, whose coefficients are `_SINE` and `_COSINE`. */
FOR_EACH_PROCESSOR
void privlearn_circles_single(const float *restrict radii, const int32_t *restrict turns, const float *restrict sine,
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

/* Squared radii, and angles, of two pairs of draws for each logarithm in double precision. */
FOR_EACH_PROCESSOR
void privlearn_double(const double *restrict logarithms, const int64_t *restrict more, double *restrict squares,
                      double *restrict angles, int64_t fours) {
    for (int64_t i = 0; i < fours; i++) {
        double size = logarithms[i] * -2.0;
        double first = size * (whole(more[i]) * 0x1p-63 * 0.5 + 0.5);
        squares[i] = first;
        squares[fours + i] = size - first;
    }
    for (int64_t i = 0; i < 2 * fours; i++) angles[i] = whole(more[fours + i]) * 0x1p-63 * 3.14159265358979323846;
}
