// The end of both bodies: the warps' sums, (TILES, CHUNKS, 4) of each lane as tensor cores leave them, become `product`.

__shared__ float shared[WARPS][ROWS][OUTPUTS];
#pragma unroll
for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
  for (int chunk = 0; chunk < CHUNKS; chunk++) {
#pragma unroll
    for (int number = 0; number < 4; number++) {
      const int row = chunk * 8 + lane % 4 * 2 + number % 2;
      shared[warp][row][tile * 16 + group + number / 2 * 8] = sums[tile][chunk][number];
    }
  }
}
__syncthreads();

auto sum_of = [&](int row, int output) {
  float sum = 0.0f;
#pragma unroll
  for (int each = 0; each < WARPS; each++) {
    sum += shared[each][row][output];
  }
  return sum;
};

// Gated, the first half of the outputs is the gate of the second: `silu(gate) * up` is what is written, of each rounded.
constexpr int WRITTEN = GATED ? OUTPUTS / 2 : OUTPUTS;
for (int index = threadIdx.x; index < num_rows * WRITTEN; index += blockDim.x) {
  const int row = index / WRITTEN;
  const int output = index % WRITTEN;
  float number = sum_of(row, output);
  if constexpr (GATED) {
    const float gate = static_cast<float>(static_cast<T>(number));
    const float up = static_cast<float>(static_cast<T>(sum_of(row, output + WRITTEN)));
    number = gate / (1.0f + expf(-gate)) * up;
  }
  product[static_cast<long>(row) * (GATED ? num_outputs / 2 : num_outputs) + first + output] = static_cast<T>(number);
}
