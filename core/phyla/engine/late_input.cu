// Body of a kernel; MLX writes its head: inputs address (of the host's numbers) and otherwise, outputs numbers and
// is_late, and the template's PATIENCE_NS. A negative number isn't there yet.
//
// Each thread looks for its own numbers, so that it doesn't matter in which order they become visible.
const int* posted = reinterpret_cast<const int*>(address[0]);
unsigned long long began, now;
asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
bool has_all = true;
for (int place = threadIdx.x; place < otherwise_shape[0]; place += blockDim.x) {
    int number;
    while (true) {
        asm volatile("ld.relaxed.sys.s32 %0, [%1];" : "=r"(number) : "l"(posted + place) : "memory");
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        if (number >= 0 || now - began > PATIENCE_NS) break;
    }
    if (number < 0) {
        has_all = false;
        number = otherwise[place];
    }
    numbers[place] = number;
}
const int is_whole = __syncthreads_and(has_all);
if (threadIdx.x == 0) is_late[0] = !is_whole;
