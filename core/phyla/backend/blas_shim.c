/* Gives MLX's CPU library the matrix products of another BLAS.
 *
 * MLX's Linux CPU wheel calls cblas_sgemm, cblas_dgemm and cblas_cgemm of a reference BLAS. Loaded with RTLD_GLOBAL
 * before MLX, this library answers those names first and hands each call to the functions bound below, whatever they are
 * called and however wide their integers are (numpy's OpenBLAS: scipy_cblas_sgemm64_, 64-bit).
 *
 * Products with few rows or one column go to gemv, a row at a time: gemm would first copy the whole weight matrix into its
 * packed form, which costs a decode step several times the product itself. Each row of such a product has the bits it would
 * have alone.
 *
 * Built with -DPHYLA_BLAS_INT=int32_t or int64_t.
 */

#include <stdint.h>

typedef PHYLA_BLAS_INT wide;

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

typedef void (*sgemm_type)(int, int, int, wide, wide, wide, float, const float *, wide, const float *, wide, float,
                           float *, wide);
typedef void (*dgemm_type)(int, int, int, wide, wide, wide, double, const double *, wide, const double *, wide, double,
                           double *, wide);
typedef void (*cgemm_type)(int, int, int, wide, wide, wide, const void *, const void *, wide, const void *, wide,
                           const void *, void *, wide);
typedef void (*sgemv_type)(int, int, wide, wide, float, const float *, wide, const float *, wide, float, float *, wide);
typedef void (*dgemv_type)(int, int, wide, wide, double, const double *, wide, const double *, wide, double, double *,
                           wide);

static sgemm_type sgemm;
static dgemm_type dgemm;
static cgemm_type cgemm;
static sgemv_type sgemv;
static dgemv_type dgemv;
static char description[256];

void phyla_blas_bind(void *new_sgemm, void *new_dgemm, void *new_cgemm, void *new_sgemv, void *new_dgemv,
                     const char *text) {
    sgemm = (sgemm_type)new_sgemm;
    dgemm = (dgemm_type)new_dgemm;
    cgemm = (cgemm_type)new_cgemm;
    sgemv = (sgemv_type)new_sgemv;
    dgemv = (dgemv_type)new_dgemv;
    int i = 0;
    for (; text[i] != 0 && i < 255; i++) description[i] = text[i];
    description[i] = 0;
}

/* What is bound, for whoever asks later in the same process. */
const char *phyla_blas_description(void) { return description; }

/* Up to this many rows, reading the weights once per row beats packing them (measured for 576 x 1536 and 576 x 49152). */
enum { MOST_ROWS = 4 };

/* An output that beta 0 overwrites is cleared here: libraries disagree on whether 0 * NaN of an unset output stays. */
#define PRODUCT(name, type, gemm, gemv)                                                                                \
    void name(int order, int trans_a, int trans_b, int m, int n, int k, type alpha, const type *a, int lda,           \
              const type *b, int ldb, type beta, type *c, int ldc) {                                                   \
        if (order != ROW_MAJOR || (m > MOST_ROWS && n != 1) || trans_a > TRANS || trans_b > TRANS) {                   \
            gemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);                               \
            return;                                                                                                    \
        }                                                                                                              \
        if (beta == 0) {                                                                                               \
            for (wide i = 0; i < m; i++)                                                                               \
                for (wide j = 0; j < n; j++) c[i * ldc + j] = 0;                                                       \
            beta = 1;                                                                                                  \
        }                                                                                                              \
        if (m > MOST_ROWS) {                                                                                           \
            wide step_b = trans_b == NO_TRANS ? ldb : 1;                                                               \
            if (trans_a == NO_TRANS)                                                                                   \
                gemv(ROW_MAJOR, NO_TRANS, m, k, alpha, a, lda, b, step_b, beta, c, ldc);                               \
            else                                                                                                       \
                gemv(ROW_MAJOR, TRANS, k, m, alpha, a, lda, b, step_b, beta, c, ldc);                                  \
            return;                                                                                                    \
        }                                                                                                              \
        wide step_a = trans_a == NO_TRANS ? 1 : lda;                                                                   \
        for (wide i = 0; i < m; i++) {                                                                                 \
            const type *row = a + i * (trans_a == NO_TRANS ? lda : 1);                                                 \
            if (trans_b == NO_TRANS)                                                                                   \
                gemv(ROW_MAJOR, TRANS, k, n, alpha, b, ldb, row, step_a, beta, c + i * ldc, 1);                        \
            else                                                                                                       \
                gemv(ROW_MAJOR, NO_TRANS, n, k, alpha, b, ldb, row, step_a, beta, c + i * ldc, 1);                     \
        }                                                                                                              \
    }

PRODUCT(cblas_sgemm, float, sgemm, sgemv)
PRODUCT(cblas_dgemm, double, dgemm, dgemv)

void cblas_cgemm(int order, int trans_a, int trans_b, int m, int n, int k, const void *alpha, const void *a, int lda,
                 const void *b, int ldb, const void *beta, void *c, int ldc) {
    cgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
