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

for (int index = threadIdx.x; index < num_rows * OUTPUTS; index += blockDim.x) {
  float sum = 0.0f;
#pragma unroll
  for (int each = 0; each < WARPS; each++) {
    sum += shared[each][index / OUTPUTS][index % OUTPUTS];
  }
  product[static_cast<long>(index / OUTPUTS) * num_outputs + first + index % OUTPUTS] = static_cast<T>(sum);
}
