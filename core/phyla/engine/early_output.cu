// Body of a kernel; MLX writes its head: inputs address (of the host's numbers), tokens and evidence, output is_done.
// A number is one more than its token, or 0 for none: where the evidence isn't finite, nothing was drawn.
int* posted = reinterpret_cast<int*>(address[0]);
for (int place = threadIdx.x; place < tokens_shape[0]; place += blockDim.x) {
    const int number = isfinite(static_cast<float>(evidence[place])) ? static_cast<int>(tokens[place]) + 1 : 0;
    asm volatile("st.relaxed.sys.s32 [%0], %1;" ::"l"(posted + place), "r"(number) : "memory");
}
if (threadIdx.x == 0) is_done[0] = 1;
