/* Products of a few rows: c (m, n) from a (m, k) and weights b, which are (n, k) and meant transposed, or (k, n).
 *
 * shim.c includes this once per width of vectors, with LANES, TARGET (the processors it is compiled for) and ROWS
 * (how many rows of a meet a tile of b at once, 3 or 6: the registers hold their sums) set.
 *
 * Weights are neither copied nor packed, and come from memory once: each tile meets all rows of a while it is in the
 * core's cache. Bits: each number of c is summed on its own, over a contiguous k in LANES partial sums and a fixed tree
 * over them, over another k in one sum. So they depend neither on m and n nor on the job and tile that a number is in.
 */

#define JOINED_(name, lanes) name##_##lanes
#define JOINED(name, lanes) JOINED_(name, lanes)
#define OF_LANES(name) JOINED(name, LANES)
#define vector OF_LANES(vector)
#define indices OF_LANES(indices)
#define load OF_LANES(load)
#define paired OF_LANES(paired)
#define rows_tile OF_LANES(rows_tile)
#define columns_tile OF_LANES(columns_tile)
#define column_tile OF_LANES(column_tile)
#define tile OF_LANES(tile)

#define INLINE static inline __attribute__((always_inline)) TARGET

/* Unrolled, so that arrays of sums are registers. */
#define EACH(i, count) _Pragma("GCC unroll 8") for (int i = 0; i < (count); i++)

#if LANES == 16
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif LANES == 8
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define ODD 1, 3, 5, 7, 9, 11, 13, 15
#else
#define EVEN 0, 2, 4, 6
#define ODD 1, 3, 5, 7
#endif

typedef float vector __attribute__((vector_size(4 * LANES)));
typedef int32_t indices __attribute__((vector_size(4 * LANES)));

#ifdef __clang__
#define PICKED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICKED(a, b, ...) __builtin_shuffle(a, b, (indices){__VA_ARGS__})
#endif

INLINE vector load(const float *from) {
    vector loaded;
    memcpy(&loaded, from, sizeof loaded);
    return loaded;
}

/* Sums of neighbours: those of `low` in the lower half, those of `high` in the upper. */
INLINE vector paired(vector low, vector high) { return PICKED(low, high, EVEN) + PICKED(low, high, ODD); }

/* `count` rows of a, from row `row` on, times four rows of b: one of the blocks of rows that meet them. */
INLINE void rows_tile(const product *p, int row, const int count, int column, int block, int num_blocks) {
    const float *a = p->packed + row * LANES, *b[4];
    vector sums[ROWS][4];
    EACH(i, count) EACH(j, 4) sums[i][j] = (vector){0};
    /* Beyond the last row of b that one again, for nobody. */
    EACH(j, 4) b[j] = p->b + (int64_t)(column + j < p->n ? column + j : p->n - 1) * p->ldb;
    /* Two tiles on, into the second cache since a is in the first; a share by each block: memory is never idle. */
    int64_t ahead = (int64_t)8 * p->ldb;
    int whole = p->k / LANES * LANES;
    for (int at = 0; at < whole; at += LANES, a += p->m * LANES) {
        vector given[ROWS];
        for (int j = block; j < 4; j += num_blocks) __builtin_prefetch(b[j] + at + ahead, 0, 2);
        EACH(i, count) given[i] = load(a + i * LANES);
        EACH(j, 4) {
            vector weights = load(b[j] + at);
            EACH(i, count) sums[i][j] += weights * given[i];
        }
    }
    EACH(i, count) {
        vector sum = paired(paired(sums[i][0], sums[i][1]), paired(sums[i][2], sums[i][3]));
        for (int left = LANES; left > 4; left /= 2) sum = paired(sum, sum);
        float found[LANES];
        memcpy(found, &sum, sizeof found);
        for (int at = whole; at < p->k; at++) EACH(j, 4) found[j] += b[j][at] * number(p, row + i, at);
        if (column + 4 <= p->n)
            store(p, row + i, column, found, 4);
        else
            store(p, row + i, column, found, p->n - column);
    }
}

/* `count` rows of a, from row `row` on, times `vectors` vectors of columns of b. */
INLINE void columns_tile(const product *p, int row, const int count, int column, const int vectors) {
    const float *b = p->b + column;
    vector sums[ROWS][4];
    EACH(i, count) EACH(j, vectors) sums[i][j] = (vector){0};
    for (int at = 0; at < p->k; at++, b += p->ldb) {
        vector weights[4];
        EACH(j, vectors) weights[j] = load(b + j * LANES);
        EACH(i, count) EACH(j, vectors) sums[i][j] += weights[j] * number(p, row + i, at);
    }
    EACH(i, count) EACH(j, vectors) {
        float found[LANES];
        memcpy(found, &sums[i][j], sizeof found);
        store(p, row + i, column + j * LANES, found, LANES);
    }
}

/* One column of b. */
INLINE void column_tile(const product *p, int row, const int count, int column) {
    float sums[ROWS] = {0};
    for (int at = 0; at < p->k; at++)
        EACH(i, count) sums[i] += p->b[(int64_t)at * p->ldb + column] * number(p, row + i, at);
    EACH(i, count) store(p, row + i, column, sums + i, 1);
}

INLINE void tile(const product *p, int row, const int count, int column, int width, int block,
                 int num_blocks) {
    if (p->trans_b == TRANS)
        rows_tile(p, row, count, column, block, num_blocks);
    else if (width == 4 * LANES)
        columns_tile(p, row, count, column, 4);
    else if (width == LANES)
        columns_tile(p, row, count, column, 1);
    else
        column_tile(p, row, count, column);
}

static TARGET void OF_LANES(multiply)(const product *p) {
    int num_blocks = (p->m + ROWS - 1) / ROWS;
    for (int column = 0, width; column < p->n; column += width) {
        int left = p->n - column;
        width = p->trans_b == TRANS ? 4 : left >= 4 * LANES ? 4 * LANES : left >= LANES ? LANES : 1;
        for (int block = 0, row = 0, count; block < num_blocks; block++, row += count) {
            count = (p->m - row) / (num_blocks - block);
            /* Written out, so that the compiler knows the count. */
            switch (count) {
                case 1: tile(p, row, 1, column, width, block, num_blocks); break;
                case 2: tile(p, row, 2, column, width, block, num_blocks); break;
                case 3: tile(p, row, 3, column, width, block, num_blocks); break;
#if ROWS == 6
                case 4: tile(p, row, 4, column, width, block, num_blocks); break;
                case 5: tile(p, row, 5, column, width, block, num_blocks); break;
                case 6: tile(p, row, 6, column, width, block, num_blocks); break;
#endif
            }
        }
    }
}

#undef JOINED_
#undef JOINED
#undef OF_LANES
#undef vector
#undef indices
#undef load
#undef paired
#undef rows_tile
#undef columns_tile
#undef column_tile
#undef tile
#undef INLINE
#undef EACH
#undef EVEN
#undef ODD
#undef PICKED
#undef LANES
#undef ROWS
#undef TARGET
