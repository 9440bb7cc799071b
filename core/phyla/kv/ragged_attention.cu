// Body of a kernel; MLX writes its head: inputs queries, keys, values, visible, scaling, output `attended`, and the
// template's T (of the inputs), O (of the output), D (width of a head), QUERIES (of a block), WARPS and WHOLE (a block
// sees all columns).
//
// A block has some queries of one key head of one row, and one of gridDim.y equal shares of the columns. A warp reads
// COLUMNS of them at a time, each lane D / 32 numbers of every one, for all queries. Sums over the lanes are made for
// all pairs of column and query at once: each exchange adds and halves what a lane has to do with, so that in the end a
// pair's score lies in the lanes that weigh it.

constexpr int NUMBERS = D / 32;
constexpr int COLUMNS = 8;
constexpr int PAIRS = COLUMNS * QUERIES;
constexpr int LEVELS = QUERIES == 4 ? 5 : QUERIES == 2 ? 4 : 3;  // halvings of the pairs
constexpr int COPIES = 32 / PAIRS;  // lanes that have the same pair
constexpr float LOG2_E = 1.44269504f;
constexpr unsigned ALL = 0xffffffffu;

struct alignas(sizeof(T) * NUMBERS) Piece {
  T each[NUMBERS];
};

const int num_heads = queries_shape[1];
const int length = queries_shape[2];
const int num_key_heads = keys_shape[1];
const int num_columns = keys_shape[2];
const int num_queries = num_heads / num_key_heads * length;
const int num_chunks = (num_queries + QUERIES - 1) / QUERIES;
const int first_query = blockIdx.x % num_chunks * QUERIES;
const int key_head = blockIdx.x / num_chunks % num_key_heads;
const long row = blockIdx.x / num_chunks / num_key_heads;
const int warp = threadIdx.x / 32;
const int lane = threadIdx.x % 32;

float asked[QUERIES][NUMBERS];
float summed[QUERIES][NUMBERS];
float largest[QUERIES];
float total[QUERIES];

#pragma unroll
for (int one = 0; one < QUERIES; one++) {
  // A last, smaller chunk computes its last query again; only one of them is written.
  const int query = min(first_query + one, num_queries - 1);
  const int head = key_head * (num_heads / num_key_heads) + query / length;
  const long at = row * queries_strides[0] + head * queries_strides[1] + query % length * queries_strides[2];
#pragma unroll
  for (int number = 0; number < NUMBERS; number++) {
    asked[one][number] = static_cast<float>(queries[at + lane * NUMBERS + number]) * scaling[0] * LOG2_E;
    summed[one][number] = 0.0f;
  }
  largest[one] = -INFINITY;
  total[one] = 0.0f;
}

// Which pair this lane weighs.
const int my_column = lane / COPIES / QUERIES;
const int my_query = lane / COPIES % QUERIES;
const int my_position = min(first_query + my_query, num_queries - 1) % length;
const bool* seen = visible + row * visible_strides[0] + my_position * visible_strides[2];
const T* key_rows = keys + row * keys_strides[0] + key_head * keys_strides[1] + lane * NUMBERS;
const T* value_rows = values + row * values_strides[0] + key_head * values_strides[1] + lane * NUMBERS;

const int share = (num_columns + gridDim.y - 1) / gridDim.y;
const int end = min(static_cast<int>(blockIdx.y + 1) * share, num_columns);
int base = blockIdx.y * share + warp * COLUMNS;
bool sees = base + my_column < end && seen[(base + my_column) * visible_strides[3]];

while (base < end) {
  const int next = base + WARPS * COLUMNS;
  // Asked for ahead: whether the next columns are read at all waits for it.
  const bool sees_next = next + my_column < end && seen[(next + my_column) * visible_strides[3]];
  if (__any_sync(ALL, sees)) {
    Piece key[COLUMNS];
    Piece value[COLUMNS];
#pragma unroll
    for (int column = 0; column < COLUMNS; column++) {
      const long at = min(base + column, num_columns - 1);
      key[column] = *reinterpret_cast<const Piece*>(key_rows + at * keys_strides[2]);
      value[column] = *reinterpret_cast<const Piece*>(value_rows + at * values_strides[2]);
    }
    float scores[PAIRS];
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++) {
      scores[pair] = 0.0f;
#pragma unroll
      for (int number = 0; number < NUMBERS; number++) {
        scores[pair] += asked[pair % QUERIES][number] * static_cast<float>(key[pair / QUERIES].each[number]);
      }
    }
#pragma unroll
    for (int level = 0; level < LEVELS; level++) {
      const int half = PAIRS >> (level + 1);
      const bool is_upper = lane & (16 >> level);
#pragma unroll
      for (int pair = 0; pair < PAIRS / 2; pair++) {
        if (pair < half) {
          const float given = is_upper ? scores[pair] : scores[pair + half];
          const float kept = is_upper ? scores[pair + half] : scores[pair];
          scores[pair] = kept + __shfl_xor_sync(ALL, given, 16 >> level);
        }
      }
    }
    float score = scores[0];
#pragma unroll
    for (int apart = COPIES / 2; apart > 0; apart /= 2) {
      score += __shfl_xor_sync(ALL, score, apart);
    }
    score = sees ? score : -INFINITY;
    float top = score;
#pragma unroll
    for (int apart = 16; apart >= COPIES * QUERIES; apart /= 2) {
      top = fmaxf(top, __shfl_xor_sync(ALL, top, apart));
    }
    float before = largest[0];
#pragma unroll
    for (int one = 1; one < QUERIES; one++) {
      before = my_query == one ? largest[one] : before;
    }
    top = fmaxf(top, before);
    // What nobody sees weighs nothing, whatever is stored there; until somebody sees anything, there is no top.
    const float weight = top == -INFINITY ? 0.0f : exp2f(score - top);
    const float kept = top == -INFINITY ? 1.0f : exp2f(before - top);
#pragma unroll
    for (int one = 0; one < QUERIES; one++) {
      const float factor = __shfl_sync(ALL, kept, one * COPIES);
      largest[one] = __shfl_sync(ALL, top, one * COPIES);
      total[one] *= factor;
#pragma unroll
      for (int number = 0; number < NUMBERS; number++) {
        summed[one][number] *= factor;
      }
    }
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++) {
      const float weighed = __shfl_sync(ALL, weight, pair * COPIES);
      total[pair % QUERIES] += weighed;
#pragma unroll
      for (int number = 0; number < NUMBERS; number++) {
        summed[pair % QUERIES][number] += weighed * static_cast<float>(value[pair / QUERIES].each[number]);
      }
    }
  }
  sees = sees_next;
  base = next;
}

__shared__ float sums[WARPS][QUERIES][D];
__shared__ float tops[WARPS][QUERIES];
__shared__ float totals[WARPS][QUERIES];

#pragma unroll
for (int one = 0; one < QUERIES; one++) {
#pragma unroll
  for (int number = 0; number < NUMBERS; number++) {
    sums[warp][one][lane * NUMBERS + number] = summed[one][number];
  }
  if (lane == 0) {
    tops[warp][one] = largest[one];
    totals[warp][one] = total[one];
  }
}
__syncthreads();

for (int index = threadIdx.x; index < QUERIES * D; index += blockDim.x) {
  const int one = index / D;
  const int query = first_query + one;
  if (query >= num_queries) {
    break;
  }
  float top = -INFINITY;
#pragma unroll
  for (int each = 0; each < WARPS; each++) {
    top = fmaxf(top, tops[each][one]);
  }
  float sum = 0.0f;
  float weights = 0.0f;
#pragma unroll
  for (int each = 0; each < WARPS; each++) {
    const float weight = top == -INFINITY ? 0.0f : exp2f(tops[each][one] - top);
    sum += sums[each][one][index % D] * weight;
    weights += totals[each][one] * weight;
  }
  const int head = key_head * (num_heads / num_key_heads) + query / length;
  // A position's heads side by side, as the projection behind it wants them.
  const long place = (row * length + query % length) * num_heads + head;
  if (WHOLE) {
    attended[place * D + index % D] = static_cast<O>(sum / weights);
  } else {
    // Of a share: its sums, the largest score they are relative to, and what they are to be divided by.
    const long at = (place * gridDim.y + blockIdx.y) * (D + 2);
    attended[at + index % D] = static_cast<O>(sum);
    if (index % D == 0) {
      attended[at + D] = static_cast<O>(top);
      attended[at + D + 1] = static_cast<O>(weights);
    }
  }
}
