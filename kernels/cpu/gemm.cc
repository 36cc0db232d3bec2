#include "kernels/cpu/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <limits>

namespace soup::kernels::cpu {
namespace {

// A product is cut into blocks of C that the pool's threads take, OpenBLAS on one thread each: its
// own threads wait for one another by sched_yield, which gives a whole time slice away where other
// programs run. The cut follows from the shape alone, and with it the bits.
constexpr int64_t kBlockSide = 512;  // packing an operand costs little beside its use
constexpr int64_t kBlockLeastSide = 64;
constexpr int64_t kBlockLeastWork = 16 << 20;  // multiplications: about half a millisecond
constexpr int64_t kBlocksWanted = 16;

struct Cut {
  int64_t down, across;   // blocks
  int64_t rows, columns;  // of one
};

int64_t BlockSide(int64_t n, int64_t blocks) {
  const int64_t side = (n + blocks - 1) / blocks;
  return (side + 15) / 16 * 16;
}

Cut CutOf(int64_t M, int64_t N, int64_t K) {
  int64_t down = (M + kBlockSide - 1) / kBlockSide, across = (N + kBlockSide - 1) / kBlockSide;
  while (down * across < kBlocksWanted) {
    const int64_t rows = BlockSide(M, down), columns = BlockSide(N, across);
    if (rows * columns * K < 2 * kBlockLeastWork) break;
    const bool halve_rows = rows >= columns;
    if ((halve_rows ? rows : columns) < 2 * kBlockLeastSide) break;
    (halve_rows ? down : across) *= 2;
  }
  Cut cut{};
  cut.rows = BlockSide(M, down);
  cut.columns = BlockSide(N, across);
  cut.down = (M + cut.rows - 1) / cut.rows;
  cut.across = (N + cut.columns - 1) / cut.columns;
  return cut;
}

blasint Dim(int64_t value) {
  SOUP_KERNEL_CHECK(value >= 0 && value <= std::numeric_limits<blasint>::max());
  return static_cast<blasint>(value);
}

}  // namespace

void Gemm(const GemmArgs& args, CpuContext& ctx) {
  SOUP_KERNEL_CHECK(args.beta == 0.0f || args.beta == 1.0f);
  SOUP_KERNEL_CHECK(args.addend == nullptr || args.beta == 1.0f);
  if (args.M == 0 || args.N == 0) return;
  // The count is the process's: another context may have set its own since.
  if (openblas_get_num_threads() != 1) openblas_set_num_threads(1);
  const Cut cut = CutOf(args.M, args.N, args.K);
  const auto* a = static_cast<const float*>(args.A);
  const auto* b = static_cast<const float*>(args.B);
  auto* c = static_cast<float*>(args.C);
  const float* addend = args.addend == args.C ? nullptr : static_cast<const float*>(args.addend);
  ctx.ParallelTasks(cut.down * cut.across, [&](int64_t task, int) {
    const int64_t row = task / cut.across * cut.rows, column = task % cut.across * cut.columns;
    const int64_t rows = std::min(cut.rows, args.M - row);
    const int64_t columns = std::min(cut.columns, args.N - column);
    float* block = c + row * args.ldc + column;
    for (int64_t i = 0; addend != nullptr && i < rows; ++i) {
      std::copy_n(addend + (row + i) * args.ldc + column, columns, block + i * args.ldc);
    }
    cblas_sgemm(CblasRowMajor, args.transpose_a ? CblasTrans : CblasNoTrans,
                args.transpose_b ? CblasTrans : CblasNoTrans, Dim(rows), Dim(columns), Dim(args.K),
                args.alpha, a + (args.transpose_a ? row : row * args.lda), Dim(args.lda),
                b + (args.transpose_b ? column * args.ldb : column), Dim(args.ldb), args.beta,
                block, Dim(args.ldc));
  });
}

}  // namespace soup::kernels::cpu
