// Contract 2 of the design as a matrix on a synthetic base: one adapter and one row of losses, to
// the bit, for {two slots, half of the layers resident, all of them} x {recompute, keep, pinned
// host memory} x {alone, in a pass with another job} x {a run, a second one, one that is killed in
// the middle and goes on in a new engine from its mirror}. A last run with another seed shows that
// the comparison can fail. same_bits_matrix.cc holds the tests; each program links it with the
// backend and the shapes that it names here.
//
// Every run prints a line (placement, hash of the adapter and the losses, seconds): the log is a
// result that docs/benchmarks can keep.
#ifndef SOUP_TESTS_BENCH_SAME_BITS_MATRIX_H_
#define SOUP_TESTS_BENCH_SAME_BITS_MATRIX_H_

#include <cstdint>
#include <string>

#include "engine/model/layer_layout.h"
#include "engine/model/model_spec.h"
#include "engine/plan/precision.h"

namespace soup::bench {

struct MatrixShape {
  std::string name;
  engine::ModelSpec model;
  engine::BaseFormat format = engine::BaseFormat::kNf4DoubleQuant;
  int64_t steps = 4;
  // Of the job that is looked at; the other one has half the records a step, and shorter ones.
  int32_t batch = 2;
  int32_t longest = 512;  // tokens of a record; the shortest has three quarters
  // False: every record is a micro-batch, so that a step has several and a kill comes between two.
  bool packing = false;
  int32_t r = 8;
  engine::Precision precision = engine::Precision::kAuto;
  double predicted_seconds = 0;  // of the whole matrix, on the machine it is written for; 0: none
};

// Of the linked program.
extern const char kMatrixBackend[];  // as bench::OpenMachine has it
MatrixShape WideMatrixShape();       // few steps
MatrixShape DeepMatrixShape();       // many layers, many steps

}  // namespace soup::bench

#endif  // SOUP_TESTS_BENCH_SAME_BITS_MATRIX_H_
