#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/loss.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/cpu/simd_table.h"

namespace soup::kernels::cpu {
namespace {

TEST(CpuContextTest, RangesCoverEverythingOnce) {
  for (int threads : {1, 2, 3, 7}) {
    CpuContext ctx({.threads = threads});
    ASSERT_EQ(ctx.threads(), threads);
    for (int64_t n : {0, 1, 2, 5, 16, 17, 1000}) {
      for (int64_t grain : {1, 4, 2000}) {
        std::vector<std::atomic<int>> hits(n);
        ctx.ParallelRange(n, grain, [&](int64_t begin, int64_t end, int thread) {
          EXPECT_LT(begin, end);
          EXPECT_LT(thread, threads);
          EXPECT_EQ(begin % grain, 0);
          for (int64_t i = begin; i < end; ++i) hits[i].fetch_add(1);
        });
        for (int64_t i = 0; i < n; ++i) EXPECT_EQ(hits[i].load(), 1) << n << ' ' << grain;
      }
    }
  }
}

TEST(CpuContextTest, TasksRunOnceAndScratchIsOneThreads) {
  CpuContext ctx({.threads = 4});
  std::vector<std::atomic<int>> hits(500);
  for (int round = 0; round < 20; ++round) {
    ctx.ParallelTasks(500, [&](int64_t task, int thread) {
      float* scratch = ctx.scratch(thread);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(scratch) % 64, 0u);
      scratch[0] = static_cast<float>(task);
      scratch[CpuContext::kScratchFloats - 1] = static_cast<float>(task);
      hits[task].fetch_add(scratch[0] == scratch[CpuContext::kScratchFloats - 1]);
    });
  }
  for (auto& h : hits) EXPECT_EQ(h.load(), 20);
}

TEST(CpuContextTest, ThousandsOfSmallJobs) {
  CpuContext ctx({.threads = 3});
  std::atomic<int64_t> sum{0};
  for (int64_t i = 0; i < 5000; ++i) {
    ctx.ParallelRange(6, 1, [&](int64_t begin, int64_t end, int) { sum.fetch_add(end - begin); });
  }
  EXPECT_EQ(sum.load(), 30000);
}

TEST(CpuContextTest, SaysWhatDecidesBits) {
  EXPECT_FALSE(BlasCoreName().empty());
  EXPECT_EQ(BestSimdTable()->name, std::string(SimdName()));
  EXPECT_EQ(FindSimdTable("sse9"), nullptr);
  CpuContext base({.threads = 1, .simd = "base"});
  EXPECT_STREQ(base.simd().name, "base");
}

// A poisoned value must reach the loss and the gradient norm, where the engine looks for it.
TEST(NonFiniteTest, LossIsNanNotANumber) {
  CpuContext ctx({.threads = 1});
  for (float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (int at : {0, 3, 18, 36}) {
      std::vector<float> logits(37, 0.5f);
      logits[at] = poison;
      const int32_t target = 5;
      float m, l, target_logit, loss;
      for (int slice = 0; slice < 2; ++slice) {
        std::vector<float> part = slice == 0 ? logits : std::vector<float>(37, 1.0f);
        LossSlice({.logits = part.data(),
                   .targets = &target,
                   .m = &m,
                   .l = &l,
                   .target_logit = &target_logit,
                   .n = 1,
                   .H = 1,
                   .v0 = slice * 37,
                   .Vs = 37,
                   .first = slice == 0,
                   .with_grad = false},
                  ctx);
      }
      LossFinish({.m = &m, .l = &l, .target_logit = &target_logit, .loss = &loss, .n = 1, .H = 1},
                 ctx);
      EXPECT_TRUE(std::isnan(loss)) << poison << " at " << at;
    }
  }
}

TEST(NonFiniteTest, SumOfSquaresShowsIt) {
  CpuContext ctx({.threads = 2});
  for (float poison :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (int64_t at : {0, 1023, 5000, 20000}) {
      std::vector<float> x(20001, 1e30f);  // large, and no overflow: partial sums are double
      double sum = 0;
      SumSquares({.x = x.data(), .n = 20001, .result = &sum}, ctx);
      EXPECT_TRUE(std::isfinite(sum));
      x[at] = poison;
      SumSquares({.x = x.data(), .n = 20001, .result = &sum}, ctx);
      EXPECT_FALSE(std::isfinite(sum)) << poison << " at " << at;
    }
  }
}

// A poisoned sequence of a pack leaves its neighbours alone.
TEST(NonFiniteTest, AttentionKeepsSequencesApart) {
  CpuContext ctx({.threads = 2});
  const int64_t T = 80, D = 16;
  std::vector<float> qkv(T * 3 * D, 0.25f), clean_out(T * D), out(T * D), lse(T);
  const std::vector<int32_t> cu = {0, 30, 50, 80};
  const auto run = [&](std::vector<float>& y) {
    AttentionForward({.q = qkv.data(),
                      .k = qkv.data() + D,
                      .v = qkv.data() + 2 * D,
                      .row_stride = 3 * D,
                      .out = y.data(),
                      .lse = lse.data(),
                      .cu_seqlens = cu.data(),
                      .S = 3,
                      .T = T,
                      .Hq = 1,
                      .Hkv = 1,
                      .D = D,
                      .scale = 0.25f},
                     ctx);
  };
  run(clean_out);
  for (int64_t i = 0; i < 3 * D; ++i) qkv[30 * 3 * D + i] = std::nanf("");
  run(out);
  for (int64_t t = 0; t < T; ++t) {
    const bool poisoned = t >= 30 && t < 50;
    EXPECT_EQ(std::isnan(out[t * D]), poisoned) << t;
    if (!poisoned) {
      EXPECT_EQ(out[t * D], clean_out[t * D]) << t;
    }
  }
}

// A query that sees one key weighs it with 1, whatever its score: AdamW would make full steps of
// the rounding that delta and dp differ by.
TEST(AttentionBackwardTest, OneKeyGivesScoresNoGradient) {
  CpuContext ctx({.threads = 2});
  const int64_t T = 70, D = 24;
  const std::vector<int32_t> cu = {0, 1, 3, 70};
  std::vector<float> qkv(T * 3 * D), grad(T * 3 * D), out(T * D), dout(T * D), lse(T), delta(T);
  for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = std::sin(0.37f * static_cast<float>(i));
  for (size_t i = 0; i < dout.size(); ++i) dout[i] = std::cos(0.73f * static_cast<float>(i));
  for (const int64_t window : {0, 1}) {
    for (const float cap : {0.0f, 5.0f}) {
      AttentionForward({.q = qkv.data(),
                        .k = qkv.data() + D,
                        .v = qkv.data() + 2 * D,
                        .row_stride = 3 * D,
                        .out = out.data(),
                        .lse = lse.data(),
                        .cu_seqlens = cu.data(),
                        .S = 3,
                        .T = T,
                        .Hq = 1,
                        .Hkv = 1,
                        .D = D,
                        .scale = 0.2f,
                        .window = window,
                        .soft_cap = cap},
                       ctx);
      AttentionBackward({.q = qkv.data(),
                         .k = qkv.data() + D,
                         .v = qkv.data() + 2 * D,
                         .row_stride = 3 * D,
                         .out = out.data(),
                         .dout = dout.data(),
                         .lse = lse.data(),
                         .delta = delta.data(),
                         .dq = grad.data(),
                         .dk = grad.data() + D,
                         .dv = grad.data() + 2 * D,
                         .grad_row_stride = 3 * D,
                         .cu_seqlens = cu.data(),
                         .S = 3,
                         .T = T,
                         .Hq = 1,
                         .Hkv = 1,
                         .D = D,
                         .scale = 0.2f,
                         .window = window,
                         .soft_cap = cap},
                        ctx);
      for (int64_t t = 0; t < T; ++t) {
        const bool alone = window == 1 || t == 0 || t == 1 || t == 3;
        bool zero = true;
        for (int64_t d = 0; d < D; ++d) zero &= grad[t * 3 * D + d] == 0.0f;
        EXPECT_EQ(zero, alone) << "row " << t << " window " << window << " cap " << cap;
        EXPECT_NE(grad[t * 3 * D + 2 * D], 0.0f);
      }
    }
  }
}

TEST(DropoutTest, KeepsItsShareAndItsMean) {
  CpuContext ctx({.threads = 2});
  const int64_t n = 200000;
  for (float p : {0.1f, 0.5f, 0.9f}) {
    std::vector<float> x(n, 1.0f);
    Dropout(
        {.x = x.data(), .y = x.data(), .n = n, .p = p, .seed = 3, .stream_hi = 1, .stream_lo = 2},
        ctx);
    double kept = 0, sum = 0;
    for (float v : x) {
      kept += v != 0;
      sum += v;
    }
    const double error = std::sqrt(p * (1 - p) / n);
    EXPECT_NEAR(kept / n, 1 - p, 6 * error);
    EXPECT_NEAR(sum / n, 1.0, 6 * error / (1 - p));
  }
}

TEST(KernelCheckDeathTest, BrokenContractEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";  // BLAS and pools have threads
  CpuContext ctx({.threads = 1});
  float x = 0;
  EXPECT_DEATH(Dropout({.x = &x, .y = &x, .n = 1, .p = 1.0f}, ctx), "kernel contract broken");
}

}  // namespace
}  // namespace soup::kernels::cpu
