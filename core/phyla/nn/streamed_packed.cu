// Body of a kernel; MLX writes its head: inputs x (rows, inputs), matrix (outputs, inputs / 8) of four bits a number,
// scales and biases (outputs, inputs / GROUP), output `product` (rows, outputs), and the template's T, HALF (T is
// float16, not bfloat16), CHUNKS (of eight rows of x), TILES, WARPS, GATED (what `streamed_sums.cu` says
// of it) and GROUP.
//
// As in streamed_dense.cu, but a lane has 32 neighbours of a row, in one load. They are unpacked in registers, to the
// numbers that an unpacked matrix of T would have: code 0x4300 | q is 128 + q in bfloat16, 0x6400 | q is 1024 + q in
// float16. A word's numbers come out in pairs four apart, so those of x are paired in the same way.

constexpr int OUTPUTS = 16 * TILES;
constexpr int ROWS = 8 * CHUNKS;
constexpr int STEP = 128;
constexpr unsigned ZERO = HALF ? 0x64006400u : 0x43004300u;

const int num_rows = x_shape[0];
const int num_inputs = x_shape[1];
const int num_outputs = matrix_shape[0];
const int warp = threadIdx.x / 32;
const int lane = threadIdx.x % 32;
const int group = lane / 4;
const int part = lane % 4 * 32;
const int first = blockIdx.x * (GATED ? OUTPUTS / 2 : OUTPUTS);
// Row of the matrix, behind the lane's own, that each half of a tile begins with: gated, the second tile is of the up part.
auto row_of = [&](int half) { return GATED ? half % 2 * 8 + half / 2 * (num_outputs / 2) : half * 8; };
const long first_row = first + group;

const T* x_rows[CHUNKS];
#pragma unroll
for (int chunk = 0; chunk < CHUNKS; chunk++) {
  // Rows that aren't there repeat the last one; nobody writes what comes of them.
  x_rows[chunk] = x + static_cast<long>(min(chunk * 8 + group, num_rows - 1)) * num_inputs + part;
}

struct Packed {
  uint4 codes;
  unsigned scale;
  unsigned bias;
};

// Both numbers of a pair.
auto doubled = [](T number) {
  const unsigned bits = *reinterpret_cast<const unsigned short*>(&number);
  return bits << 16 | bits;
};

auto read = [&](Packed (&packed)[2 * TILES], int base) {
#pragma unroll
  for (int half = 0; half < 2 * TILES; half++) {
    const long row = first_row + row_of(half);
    const auto* at = matrix + row * (num_inputs / 8) + (base + part) / 8;
    uint4& codes = packed[half].codes;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(codes.x), "=r"(codes.y), "=r"(codes.z), "=r"(codes.w)
                 : "l"(at));
    packed[half].scale = doubled(scales[row * (num_inputs / GROUP) + (base + part) / GROUP]);
    packed[half].bias = doubled(biases[row * (num_inputs / GROUP) + (base + part) / GROUP]);
  }
};

auto unpacked = [](const Packed& packed, int word, int pair) {
  const unsigned codes = word == 0 ? packed.codes.x : word == 1 ? packed.codes.y : word == 2 ? packed.codes.z : packed.codes.w;
  const unsigned code = codes >> (4 * pair) & 0x000f000fu | ZERO;
  unsigned number;
  if constexpr (HALF) {
    asm("{.reg .b32 q; sub.f16x2 q, %1, %2; fma.rn.f16x2 %0, q, %3, %4;}"
        : "=r"(number) : "r"(code), "r"(ZERO), "r"(packed.scale), "r"(packed.bias));
  } else {
    asm("{.reg .b32 q; sub.bf16x2 q, %1, %2; fma.rn.bf16x2 %0, q, %3, %4;}"
        : "=r"(number) : "r"(code), "r"(ZERO), "r"(packed.scale), "r"(packed.bias));
  }
  return number;
};

auto multiply = [](float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#define PHYLA_MULTIPLY(TYPE)                                                                                   \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "    \
      "{%0,%1,%2,%3};"                                                                                         \
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                             \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (HALF) {
    PHYLA_MULTIPLY("f16");
  } else {
    PHYLA_MULTIPLY("bf16");
  }
#undef PHYLA_MULTIPLY
};

float sums[TILES][CHUNKS][4] = {};
Packed packed[2 * TILES];
Packed next_packed[2 * TILES];
int base = warp * STEP;
if (base < num_inputs) {
  read(packed, base);
}
while (base < num_inputs) {
  const int next = base + WARPS * STEP;
  if (next < num_inputs) {
    read(next_packed, next);
  }
#pragma unroll
  for (int word = 0; word < 4; word++) {
    uint4 given[CHUNKS];
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
      given[chunk] = *reinterpret_cast<const uint4*>(x_rows[chunk] + base + word * 8);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      unsigned b[CHUNKS][2];
#pragma unroll
      for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const unsigned left = half ? given[chunk].y : given[chunk].x;
        const unsigned right = half ? given[chunk].w : given[chunk].z;
        b[chunk][0] = __byte_perm(left, right, 0x5410);
        b[chunk][1] = __byte_perm(left, right, 0x7632);
      }
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        const Packed& low = packed[2 * tile];
        const Packed& high = packed[2 * tile + 1];
        const unsigned a[4] = {
            unpacked(low, word, 2 * half),
            unpacked(high, word, 2 * half),
            unpacked(low, word, 2 * half + 1),
            unpacked(high, word, 2 * half + 1),
        };
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
          multiply(sums[tile][chunk], a, b[chunk]);
        }
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2 * TILES; half++) {
    packed[half] = next_packed[half];
  }
  base = next;
}
