// Body of a kernel: puts together what blocks made of their shares of the columns. A thread per number of `attended`;
// the template has T (of `attended`), D and SHARES.

const long index = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x;
const float* share = parts + index / D * SHARES * (D + 2);
float top = -INFINITY;
for (int one = 0; one < SHARES; one++) {
  top = fmaxf(top, share[one * (D + 2) + D]);
}
float sum = 0.0f;
float weights = 0.0f;
for (int one = 0; one < SHARES; one++) {
  const float weight = exp2f(share[one * (D + 2) + D] - top);
  sum += share[one * (D + 2) + index % D] * weight;
  weights += share[one * (D + 2) + D + 1] * weight;
}
attended[index] = static_cast<T>(sum / weights);
