// Body of a kernel; MLX writes its head: inputs x (rows, inputs) and matrix (outputs, inputs), output `product`
// (rows, outputs), and the template's T (of all), HALF (T is float16, not bfloat16), CHUNKS (of eight rows of x), TILES,
// WARPS and GATED (what `streamed_sums.cu` says of it).
//
// A block has 16 * TILES outputs; its warps share the inputs and put their sums together at the end. Tensor cores add up
// in any order of the inputs that both operands agree on, so each lane takes eight neighbours of one row: a row of the
// matrix comes in whole sectors, straight into the registers that are multiplied.

constexpr int OUTPUTS = 16 * TILES;
constexpr int ROWS = 8 * CHUNKS;
constexpr int AHEAD = 4 / TILES;  // times 32 inputs, asked for together
constexpr int STEP = 32 * AHEAD;

const int num_rows = x_shape[0];
const int num_inputs = x_shape[1];
const int num_outputs = matrix_shape[0];
const int warp = threadIdx.x / 32;
const int lane = threadIdx.x % 32;
const int group = lane / 4;
const int part = lane % 4 * 8;
const int first = blockIdx.x * (GATED ? OUTPUTS / 2 : OUTPUTS);
// Row of the matrix, behind the lane's own, that each half of a tile begins with: gated, the second tile is of the up part.
auto row_of = [&](int half) { return GATED ? half % 2 * 8 + half / 2 * (num_outputs / 2) : half * 8; };

const T* matrix_rows = matrix + static_cast<long>(first + group) * num_inputs + part;
const T* x_rows[CHUNKS];
#pragma unroll
for (int chunk = 0; chunk < CHUNKS; chunk++) {
  // Rows that aren't there repeat the last one; nobody writes what comes of them.
  x_rows[chunk] = x + static_cast<long>(min(chunk * 8 + group, num_rows - 1)) * num_inputs + part;
}

auto multiply = [](float (&sums)[4], const uint4& low, const uint4& high, const uint4& given) {
#define PHYLA_MULTIPLY(TYPE, A, B)                                                                               \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "      \
      "{%0,%1,%2,%3};"                                                                                           \
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                               \
      : "r"(low.A), "r"(high.A), "r"(low.B), "r"(high.B), "r"(given.A), "r"(given.B))
  if constexpr (HALF) {
    PHYLA_MULTIPLY("f16", x, y);
    PHYLA_MULTIPLY("f16", z, w);
  } else {
    PHYLA_MULTIPLY("bf16", x, y);
    PHYLA_MULTIPLY("bf16", z, w);
  }
#undef PHYLA_MULTIPLY
};

// Every number of the matrix is used once: it shouldn't push x out of the first cache. A warp asks for half of each line
// here and for the other half right after: the second cache should fetch them at once.
auto read = [&](uint4 (&pieces)[AHEAD][2 * TILES], int base) {
#pragma unroll
  for (int ahead = 0; ahead < AHEAD; ahead++) {
#pragma unroll
    for (int half = 0; half < 2 * TILES; half++) {
      const T* at = matrix_rows + static_cast<long>(row_of(half)) * num_inputs + base + ahead * 32;
      uint4& piece = pieces[ahead][half];
      asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                   : "l"(at));
    }
  }
};

float sums[TILES][CHUNKS][4] = {};
uint4 pieces[AHEAD][2 * TILES];
uint4 next_pieces[AHEAD][2 * TILES];
int base = warp * STEP;
if (base < num_inputs) {
  read(pieces, base);
}
while (base < num_inputs) {
  const int next = base + WARPS * STEP;
  if (next < num_inputs) {
    read(next_pieces, next);
  }
#pragma unroll
  for (int ahead = 0; ahead < AHEAD; ahead++) {
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
      const uint4 given = *reinterpret_cast<const uint4*>(x_rows[chunk] + base + ahead * 32);
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        multiply(sums[tile][chunk], pieces[ahead][2 * tile], pieces[ahead][2 * tile + 1], given);
      }
    }
  }
#pragma unroll
  for (int ahead = 0; ahead < AHEAD; ahead++) {
#pragma unroll
    for (int half = 0; half < 2 * TILES; half++) {
      pieces[ahead][half] = next_pieces[ahead][half];
    }
  }
  base = next;
}
