// The matrix of same_bits_matrix.h on the CPU backend, scaled down.
#include "tests/bench/same_bits_matrix.h"

namespace soup::bench {
namespace {

MatrixShape Shape(const char* name, int64_t layers, int64_t hidden) {
  MatrixShape shape;
  shape.name = name;
  engine::ModelSpec& m = shape.model;
  m.family = "llama";
  m.hidden = hidden;
  m.intermediate = 2 * hidden;
  m.layers = layers;
  m.heads = hidden / 16;
  m.kv_heads = m.heads / 2;
  m.head_dim = 16;
  m.vocab = 256;
  m.max_position = 512;
  return shape;
}

}  // namespace

const char kMatrixBackend[] = "cpu";

MatrixShape WideMatrixShape() {
  MatrixShape shape = Shape("wide", 6, 64);
  shape.longest = 32;
  return shape;
}

MatrixShape DeepMatrixShape() {
  MatrixShape shape = Shape("deep", 12, 32);
  shape.format = engine::BaseFormat::kNf4;
  shape.steps = 8;
  shape.batch = 4;
  shape.longest = 16;
  shape.packing = true;
  return shape;
}

}  // namespace soup::bench
