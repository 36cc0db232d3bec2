// The matrix of same_bits_matrix.h on a GPU: the shapes of an 8B decoder over 4 steps, and a small
// deep one over 50. Takes 8 GB of device memory and 8 GB of the host's. Without a GPU the tests are
// reported as skipped; SOUP_REQUIRE_GPU=1 makes that a failure.
#include "bench/named_base.h"
#include "tests/bench/same_bits_matrix.h"

namespace soup::bench {

const char kMatrixBackend[] = "cuda";

// Two micro-batches of up to 512 tokens a step. Predicted for an H200 from the steps of
// docs/BENCHMARKS.md: 0.16 s two slots, 0.13 s half, 0.09 s all resident, a third more with the
// other job; opening, pinning and reading back 0.7 s a run, and 2 s more for a killed one.
MatrixShape WideMatrixShape() {
  MatrixShape shape;
  shape.name = "llama-8b";
  shape.model = FindBase(shape.name).value();
  shape.precision = engine::Precision::kBf16;
  shape.predicted_seconds = 120;
  return shape;
}

// One micro-batch of a few hundred tokens a step, some 2,500 launches of 4.5 us.
MatrixShape DeepMatrixShape() {
  MatrixShape shape;
  shape.name = "deep-256";
  engine::ModelSpec& m = shape.model;
  m.family = "llama";
  m.hidden = 256;
  m.intermediate = 704;
  m.layers = 32;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 64;
  m.vocab = 2048;
  m.max_position = 2048;
  shape.format = engine::BaseFormat::kNf4;
  shape.precision = engine::Precision::kBf16;  // auto is fp32 for one as narrow
  shape.steps = 50;
  shape.batch = 4;
  shape.longest = 96;
  shape.packing = true;
  shape.predicted_seconds = 60;
  return shape;
}

}  // namespace soup::bench
