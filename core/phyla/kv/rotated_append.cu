// Body of a kernel; MLX writes its head: inputs projected (tokens, slices * D), keys and values (rows, key heads, columns,
// D), offsets and starts (rows), periods (ROTATED / 2), query_norm and key_norm (D, where NORMED), small; output queries
// (rows, heads, length, D); and the template's T (of projected, keys, values, norms and queries), D, ROTATED and NORMED.
//
// A warp has one head of one token: a query, which goes to `queries`, or a key or a value, which goes to its column. Keys
// and values are written where they lie, through inputs: no other kernel of the step touches those columns before it has
// waited for `queries`.

constexpr int PAIRS = D / 2;
constexpr int EACH = (PAIRS + 31) / 32;

const int num_rows = keys_shape[0];
const int num_key_heads = keys_shape[1];
const int num_columns = keys_shape[2];
const int num_tokens = projected_shape[0];
const int num_slices = projected_shape[1] / D;
const int num_heads = num_slices - 2 * num_key_heads;
const int length = num_tokens / num_rows;
const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
const int lane = threadIdx.x % 32;
if (warp >= num_tokens * num_slices) {
  return;
}
const int slice = warp % num_slices;
const int token = warp / num_slices;
const int row = token / length;
const int place = token % length;
const bool is_query = slice < num_heads;
const bool is_value = slice >= num_heads + num_key_heads;

const T* given = projected + token * projected_strides[0] + slice * D;
float first[EACH];
float second[EACH];
int first_at[EACH];
int second_at[EACH];
#pragma unroll
for (int each = 0; each < EACH; each++) {
  const int pair = lane + each * 32;
  const bool turns = !is_value && pair < ROTATED / 2;
  first_at[each] = turns ? pair : is_value ? 2 * pair : ROTATED + 2 * (pair - ROTATED / 2);
  second_at[each] = turns ? pair + ROTATED / 2 : first_at[each] + 1;
  first[each] = pair < PAIRS ? static_cast<float>(given[first_at[each]]) : 0.0f;
  second[each] = pair < PAIRS ? static_cast<float>(given[second_at[each]]) : 0.0f;
}

if (NORMED && !is_value) {
  float squares = 0.0f;
#pragma unroll
  for (int each = 0; each < EACH; each++) {
    squares += first[each] * first[each] + second[each] * second[each];
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) {
    squares += __shfl_xor_sync(0xffffffffu, squares, apart);
  }
  const float factor = rsqrtf(squares / D + small[0]);
  const T* weights = is_query ? query_norm : key_norm;
#pragma unroll
  for (int each = 0; each < EACH; each++) {
    if (lane + each * 32 < PAIRS) {
      // Rounded as a norm of its own would give it.
      first[each] = static_cast<float>(static_cast<T>(first[each] * factor * static_cast<float>(weights[first_at[each]])));
      second[each] =
          static_cast<float>(static_cast<T>(second[each] * factor * static_cast<float>(weights[second_at[each]])));
    }
  }
}

T* to;
if (is_query) {
  to = queries + ((static_cast<long>(row) * num_heads + slice) * length + place) * D;
} else {
  // Modulo: a dead seat stays inside its buffer.
  const long column = (starts[row] + place) % num_columns;
  to = is_value ? const_cast<T*>(values) + row * values_strides[0] +
                      (slice - num_heads - num_key_heads) * values_strides[1] + column * values_strides[2]
                : const_cast<T*>(keys) + row * keys_strides[0] + (slice - num_heads) * keys_strides[1] +
                      column * keys_strides[2];
}
const float position = static_cast<float>(offsets[row] + place);
#pragma unroll
for (int each = 0; each < EACH; each++) {
  const int pair = lane + each * 32;
  if (pair >= PAIRS) {
    continue;
  }
  float cosine = 1.0f;
  float sine = 0.0f;
  if (!is_value && pair < ROTATED / 2) {
    sincosf(position / periods[pair], &sine, &cosine);
  }
  to[first_at[each]] = static_cast<T>(first[each] * cosine - second[each] * sine);
  to[second_at[each]] = static_cast<T>(first[each] * sine + second[each] * cosine);
}
