/* Gives MLX's CPU library the matrix products of another BLAS.
 *
 * MLX's Linux CPU wheel calls cblas_sgemm, cblas_dgemm and cblas_cgemm of a reference BLAS. Loaded with RTLD_GLOBAL
 * before MLX, this library answers those names first and hands the work to the functions bound below, whatever they are
 * called and however wide their integers are (numpy's OpenBLAS: scipy_cblas_sgemm64_, 64-bit).
 *
 * Two things are done here rather than there, both for float32:
 *
 * - Products with few rows don't go to gemm (few_rows.h): it first copies the whole weight matrix into its packed form,
 *   which costs a decode step several times the product itself. Each row has the bits it has alone.
 * - Threads. The library runs on one; products are cut here into jobs that a small pool and the caller claim one by one.
 *   OpenBLAS's own threads wait for each other by spinning: with anything else on the machine a product of 0.04 ms
 *   takes a scheduler's slice, 8 ms. Here a caller never waits for a job that nobody has begun. Cuts depend on shapes
 *   and the configured number of threads alone, so results don't depend on who ran which job.
 *
 * Built with -DPHYLA_BLAS_INT=int32_t or int64_t, for Linux.
 */

#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef PHYLA_BLAS_INT wide;

typedef void (*sgemm_type)(int, int, int, wide, wide, wide, float, const float *, wide, const float *, wide, float,
                           float *, wide);
typedef void (*dgemm_type)(int, int, int, wide, wide, wide, double, const double *, wide, const double *, wide, double,
                           double *, wide);
typedef void (*cgemm_type)(int, int, int, wide, wide, wide, const void *, const void *, wide, const void *, wide,
                           const void *, void *, wide);

static sgemm_type sgemm;
static dgemm_type dgemm;
static cgemm_type cgemm;
static char description[256];

#include "pool.h"
#include "product.h"

/* Up to this many rows, reading weights where they lie beats packing them (measured: docs/decisions/0002). */
enum { MOST_ROWS = 32 };

/* Cuts fall on multiples of these, where the kernels' own blocks end too; finer for few rows by transposed weights, so
 * that a product of 576 columns is four equal jobs and not three. */
enum { CUT = 64, FINE_CUT = 16 };

/* Multiply-adds below which a second thread costs more than it saves. */
static const double WORTH_A_JOB = 50e3;

/* Kernels for few rows, by the numbers in a vector. */

#define LANES 4
#define TARGET
#if defined(__x86_64__)
#define ROWS 3
#else
#define ROWS 6
#endif
#include "few_rows.h"

#if defined(__x86_64__)
#define LANES 8
#define TARGET __attribute__((target("avx2,fma")))
#define ROWS 3
#include "few_rows.h"

#define LANES 16
#define TARGET __attribute__((target("avx512f,fma")))
#define ROWS 6
#include "few_rows.h"
#endif

/* Of the kernel in use. */
static int lanes = 4;

static void run_few_rows(const void *whole, int job) {
    product p = part_of(whole, job);
#if defined(__x86_64__)
    if (lanes == 16)
        multiply_16(&p);
    else if (lanes == 8)
        multiply_8(&p);
    else
#endif
        multiply_4(&p);
}

static void run_gemm(const void *whole, int job) {
    product p = part_of(whole, job);
    sgemm(ROW_MAJOR, p.trans_a, p.trans_b, p.m, p.n, p.k, p.alpha, p.a, p.lda, p.b, p.ldb, p.beta, p.c, p.ldc);
}

/* The whole vectors of all rows side by side; null without memory for it. */
static float *pack(const product *p, float *nearby, size_t size_nearby) {
    int num_vectors = p->k / lanes;
    size_t size = sizeof(float) * lanes * num_vectors * p->m;
    float *packed = size <= size_nearby ? nearby : malloc(size);
    if (!packed) return packed;
    float *to = packed;
    for (int at = 0; at < num_vectors * lanes; at += lanes)
        for (int i = 0; i < p->m; i++, to += lanes) {
            const float *from = p->a + place(p, i, at);
            if (p->trans_a == NO_TRANS)
                memcpy(to, from, sizeof(float) * lanes);
            else
                for (int j = 0; j < lanes; j++) to[j] = from[(int64_t)j * p->lda];
        }
    return packed;
}

void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc) {
    if (m <= 0 || n <= 0) return;
    if (order != ROW_MAJOR || trans_a > TRANS || trans_b > TRANS) {
        sgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        return;
    }
    product whole = {trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, 0, 0, 0};
    float nearby[4096] __attribute__((aligned(64)));
    int has_few_rows = m <= MOST_ROWS;
    if (has_few_rows && trans_b == TRANS) {
        whole.packed = pack(&whole, nearby, sizeof nearby);
        has_few_rows = whole.packed != 0;
    }
    whole.by_rows = !has_few_rows && m > n;
    int length = whole.by_rows ? m : n;
    /* Two jobs per thread: a thread that is held up leaves its second one to the others. */
    double most = (double)m * n * k / WORTH_A_JOB;
    int count = num_threads == 1 ? 1 : most < 2 * num_threads ? (int)most : 2 * num_threads;
    if (count < 1) count = 1;
    int cut = has_few_rows && trans_b == TRANS ? FINE_CUT : CUT;
    whole.size = ((length + count - 1) / count + cut - 1) / cut * cut;
    run_jobs(has_few_rows ? run_few_rows : run_gemm, &whole, (length + whole.size - 1) / whole.size);
    if (whole.packed != nearby) free((void *)whole.packed);
}

void cblas_dgemm(int order, int trans_a, int trans_b, int m, int n, int k, double alpha, const double *a, int lda,
                 const double *b, int ldb, double beta, double *c, int ldc) {
    dgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_cgemm(int order, int trans_a, int trans_b, int m, int n, int k, const void *alpha, const void *a, int lda,
                 const void *b, int ldb, const void *beta, void *c, int ldc) {
    cgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

/* Multiply few rows in vectors as wide as this processor's, up to `most` numbers; returns how many. Called before the
 * first product. */
int phyla_blas_set_lanes(int most) {
    lanes = 4;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (most >= 8 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) lanes = 8;
    if (most >= 16 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma")) lanes = 16;
#endif
    return lanes;
}

/* Called once, before the first product. Returns the number of threads that products run on. */
int phyla_blas_bind(void *new_sgemm, void *new_dgemm, void *new_cgemm, const char *text, int wanted_threads) {
    sgemm = (sgemm_type)new_sgemm;
    dgemm = (dgemm_type)new_dgemm;
    cgemm = (cgemm_type)new_cgemm;
    strncpy(description, text, sizeof description - 1);
    start_threads(wanted_threads);
    return num_threads;
}

/* What is bound, for whoever asks later in the same process. */
const char *phyla_blas_description(void) { return description; }
