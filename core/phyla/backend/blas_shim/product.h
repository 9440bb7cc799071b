/* A matrix product in row-major order, or the part of one that a job computes: c = alpha * a b + beta * c. */

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

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
    const float *packed; /* a as `pack` leaves it */
} product;

/* Of a number of a, counted in numbers. */
static inline int64_t place(const product *p, int64_t row, int64_t at) {
    return p->trans_a == NO_TRANS ? row * p->lda + at : at * p->lda + row;
}

static inline float number(const product *p, int row, int at) { return p->a[place(p, row, at)]; }

static product part_of(const product *whole, int job) {
    product part = *whole;
    int first = job * whole->size;
    if (whole->by_rows) {
        part.m = whole->m - first < whole->size ? whole->m - first : whole->size;
        part.a += place(whole, first, 0);
        part.c += (int64_t)first * whole->ldc;
    } else {
        part.n = whole->n - first < whole->size ? whole->n - first : whole->size;
        part.b += whole->trans_b == NO_TRANS ? first : (int64_t)first * whole->ldb;
        part.c += first;
    }
    return part;
}

static inline __attribute__((always_inline)) void store(const product *p, int row, int column, const float *sums,
                                                        int count) {
    float *c = p->c + (int64_t)row * p->ldc + column;
    float alpha = p->alpha, beta = p->beta;
    if (beta == 0)
        for (int i = 0; i < count; i++) c[i] = alpha * sums[i];
    else
        for (int i = 0; i < count; i++) c[i] = alpha * sums[i] + beta * c[i];
}
