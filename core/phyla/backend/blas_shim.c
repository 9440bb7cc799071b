/* Gives MLX's CPU library the matrix products of another BLAS.
 *
 * MLX's Linux CPU wheel calls cblas_sgemm, cblas_dgemm and cblas_cgemm of a reference BLAS. Loaded with RTLD_GLOBAL
 * before MLX, this library answers those names first and hands the work to the functions bound below, whatever they are
 * called and however wide their integers are (numpy's OpenBLAS: scipy_cblas_sgemm64_, 64-bit).
 *
 * Two things are done here rather than there, both for float32:
 *
 * - Products with few rows go to gemv, a row at a time: gemm first copies the whole weight matrix into its packed form,
 *   which costs a decode step several times the product itself. Each row then has the bits it has alone.
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
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef PHYLA_BLAS_INT wide;

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

typedef void (*sgemm_type)(int, int, int, wide, wide, wide, float, const float *, wide, const float *, wide, float,
                           float *, wide);
typedef void (*dgemm_type)(int, int, int, wide, wide, wide, double, const double *, wide, const double *, wide, double,
                           double *, wide);
typedef void (*cgemm_type)(int, int, int, wide, wide, wide, const void *, const void *, wide, const void *, wide,
                           const void *, void *, wide);
typedef void (*sgemv_type)(int, int, wide, wide, float, const float *, wide, const float *, wide, float, float *, wide);

static sgemm_type sgemm;
static dgemm_type dgemm;
static cgemm_type cgemm;
static sgemv_type sgemv;
static int num_threads = 1;
static char description[256];

/* The pool: one list of jobs at a time. */

enum { SPINS_BEFORE_SLEEP = 4000, SPINS_BEFORE_YIELD = 20000 };

typedef void (*job_type)(const void *work, int job);

/* The list being worked on: its number (upper 32 bits), how many jobs it has and how many are claimed (16 bits each).
 * Claiming a job moves it by one, so `run` and `work` stay as they are until every claimed job is counted as done. */
static _Atomic uint64_t list;
static _Atomic int num_done;
static _Atomic int num_sleeping;
static _Atomic uint32_t wakeups;
static atomic_flag is_taken = ATOMIC_FLAG_INIT;
static job_type run;
static const void *work;

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int claimed(uint64_t state) { return (int)(state & 0xffff); }
static int num_jobs(uint64_t state) { return (int)(state >> 16 & 0xffff); }

static int claim(void) {
    uint64_t state = atomic_load(&list);
    while (claimed(state) < num_jobs(state))
        if (atomic_compare_exchange_weak(&list, &state, state + 1)) return claimed(state);
    return -1;
}

static int work_off(void) {
    int job, num_run = 0;
    for (; (job = claim()) >= 0; num_run++) {
        run(work, job);
        atomic_fetch_add(&num_done, 1);
    }
    return num_run;
}

static void *worker(void *unused) {
    for (int spins = 0;; spins++) {
        if (work_off() > 0) spins = 0;
        if (spins < SPINS_BEFORE_SLEEP) {
            pause_briefly();
            continue;
        }
        uint32_t seen = atomic_load(&wakeups);
        atomic_fetch_add(&num_sleeping, 1);
        /* Looked at again after saying so: a caller either sees the sleeper or is seen here. */
        uint64_t state = atomic_load(&list);
        if (claimed(state) >= num_jobs(state)) syscall(SYS_futex, &wakeups, FUTEX_WAIT_PRIVATE, seen, 0, 0, 0);
        atomic_fetch_sub(&num_sleeping, 1);
        spins = 0;
    }
    return unused;
}

static void run_jobs(job_type new_run, const void *new_work, int count) {
    /* Another thread's product is in the pool: this one goes on alone. */
    if (count == 1 || num_threads == 1 || atomic_flag_test_and_set(&is_taken)) {
        for (int job = 0; job < count; job++) new_run(new_work, job);
        return;
    }
    run = new_run;
    work = new_work;
    atomic_store(&num_done, 0);
    uint64_t number = (atomic_load(&list) >> 32) + 1;
    atomic_store(&list, number << 32 | (uint64_t)count << 16);
    if (atomic_load(&num_sleeping) > 0) {
        atomic_fetch_add(&wakeups, 1);
        syscall(SYS_futex, &wakeups, FUTEX_WAKE_PRIVATE, num_threads - 1, 0, 0, 0);
    }
    work_off();
    for (int spins = 0; atomic_load(&num_done) < count; spins++) {
        pause_briefly();
        if (spins > SPINS_BEFORE_YIELD) sched_yield();
    }
    atomic_flag_clear(&is_taken);
}

/* Products. */

/* Up to this many rows, multiplying the weights by each of them beats packing the weights. */
enum { MOST_ROWS = 8 };

/* Weights in a block that a narrow product reads once per row. */
enum { BLOCK = 64 * 1024 };

/* Cuts fall on multiples of this, where the kernels' own blocks end too. */
enum { CUT = 64 };

/* Multiply-adds below which a second thread costs more than it saves. */
static const double WORTH_A_JOB = 50e3;

typedef struct {
    int trans_a, trans_b, m, n, k;
    float alpha;
    const float *a;
    int lda;
    const float *b;
    int ldb;
    float beta;
    float *c;
    int ldc;
    int size; /* of a job, in columns of c, or in rows if `by_rows` */
    int by_rows;
} product;

static product part_of(const product *whole, int job) {
    product part = *whole;
    int first = job * whole->size;
    if (whole->by_rows) {
        part.m = whole->m - first < whole->size ? whole->m - first : whole->size;
        part.a += whole->trans_a == NO_TRANS ? (wide)first * whole->lda : first;
        part.c += (wide)first * whole->ldc;
    } else {
        part.n = whole->n - first < whole->size ? whole->n - first : whole->size;
        part.b += whole->trans_b == NO_TRANS ? first : (wide)first * whole->ldb;
        part.c += first;
    }
    return part;
}

static void run_gemm(const void *whole, int job) {
    product p = part_of(whole, job);
    sgemm(ROW_MAJOR, p.trans_a, p.trans_b, p.m, p.n, p.k, p.alpha, p.a, p.lda, p.b, p.ldb, p.beta, p.c, p.ldc);
}

static void multiply_rows(product p) {
    wide step = p.trans_a == NO_TRANS ? 1 : p.lda;
    for (wide i = 0; i < p.m; i++) {
        const float *row = p.a + i * (p.trans_a == NO_TRANS ? p.lda : 1);
        float *out = p.c + i * p.ldc;
        /* Cleared here: libraries disagree on whether 0 * NaN of an unset output stays. */
        if (p.beta == 0) memset(out, 0, sizeof(float) * p.n);
        float beta = p.beta == 0 ? 1 : p.beta;
        if (p.trans_b == NO_TRANS)
            sgemv(ROW_MAJOR, TRANS, p.k, p.n, p.alpha, p.b, p.ldb, row, step, beta, out, 1);
        else
            sgemv(ROW_MAJOR, NO_TRANS, p.n, p.k, p.alpha, p.b, p.ldb, row, step, beta, out, 1);
    }
}

static void run_rows(const void *whole, int job) {
    product p = part_of(whole, job);
    /* Every row meets a block of weights while it is in the core's own cache. */
    p.size = p.m == 1 || p.k == 0 ? p.n : (BLOCK / p.k / CUT + 1) * CUT;
    p.by_rows = 0;
    for (int block = 0; block * p.size < p.n; block++) multiply_rows(part_of(&p, block));
}

void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc) {
    if (m <= 0 || n <= 0) return;
    if (order != ROW_MAJOR || trans_a > TRANS || trans_b > TRANS) {
        sgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        return;
    }
    int is_narrow = m <= MOST_ROWS;
    product whole = {trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, 0, !is_narrow && m > n};
    int length = whole.by_rows ? m : n;
    /* Two jobs per thread: a thread that is held up leaves its second one to the others. */
    double most = (double)m * n * k / WORTH_A_JOB;
    int count = num_threads == 1 ? 1 : most < 2 * num_threads ? (int)most : 2 * num_threads;
    if (count < 1) count = 1;
    whole.size = ((length + count - 1) / count + CUT - 1) / CUT * CUT;
    run_jobs(is_narrow ? run_rows : run_gemm, &whole, (length + whole.size - 1) / whole.size);
}

void cblas_dgemm(int order, int trans_a, int trans_b, int m, int n, int k, double alpha, const double *a, int lda,
                 const double *b, int ldb, double beta, double *c, int ldc) {
    dgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_cgemm(int order, int trans_a, int trans_b, int m, int n, int k, const void *alpha, const void *a, int lda,
                 const void *b, int ldb, const void *beta, void *c, int ldc) {
    cgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

/* Called once, before the first product. Returns the number of threads that products run on. */
int phyla_blas_bind(void *new_sgemm, void *new_dgemm, void *new_cgemm, void *new_sgemv, const char *text,
                    int wanted_threads) {
    sgemm = (sgemm_type)new_sgemm;
    dgemm = (dgemm_type)new_dgemm;
    cgemm = (cgemm_type)new_cgemm;
    sgemv = (sgemv_type)new_sgemv;
    strncpy(description, text, sizeof description - 1);
    num_threads = wanted_threads;
    sigset_t all, before;
    sigfillset(&all);
    /* Signals are for the threads that Python knows. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 1; i < num_threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, worker, 0) != 0) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, 0);
    return num_threads;
}

/* What is bound, for whoever asks later in the same process. */
const char *phyla_blas_description(void) { return description; }
