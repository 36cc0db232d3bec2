#include "engine/base/attention_library.h"

#include <gtest/gtest.h>

#include <tuple>

namespace soup::engine {
namespace {

constexpr AttentionWidths k8b = {32, 8, 128};
constexpr int64_t kH200 = 150'754'820'096;

TEST(AttentionLibrary, ClassesHoldTheirLengthsAndAreFew) {
  int classes = 0;
  for (int64_t n = 1, last = 0; n <= 1 << 17; ++n) {
    const int64_t c = AttentionLengthClass(n);
    ASSERT_GE(c, n);
    ASSERT_EQ(c % 128, 0);
    ASSERT_EQ(AttentionLengthClass(c), c) << n;
    ASSERT_LE(c - n, n <= 2048 ? 127 : n / 8) << n;
    ASSERT_GE(c, last);
    if (c != last) ++classes;
    last = c;
  }
  EXPECT_EQ(classes, 16 + 6 * 8);
}

// What cuDNN 9.14 and 9.19 took on an H200: {class, heads, kv heads, head dim, groups, bytes}.
TEST(AttentionLibrary, WorkspaceIsAtLeastWhatWasMeasuredAndLittleMore) {
  const struct {
    int64_t length_class;
    AttentionWidths widths;
    int64_t groups, bytes;
  } measured[] = {
      {512, k8b, 1, 3'154'688},           {512, k8b, 8, 25'232'128},
      {2048, k8b, 8, 302'252'800},        {4096, k8b, 1, 142'672'640},
      {4096, k8b, 8, 1'141'375'744},      {16384, k8b, 1, 2'181'300'992},
      {2048, {14, 2, 64}, 1, 62'448'384}, {4096, {32, 8, 96}, 8, 1'124'598'528},
  };
  for (const auto& m : measured) {
    const int64_t planned = m.groups * AttentionGroupBytes(m.length_class, m.widths);
    EXPECT_GE(planned, m.bytes) << m.length_class;
    EXPECT_LE(planned - m.bytes, m.groups * (int64_t{64} << 10)) << m.length_class;
  }
}

TEST(AttentionLibrary, GroupsFillTheLimitAndDivideTheHeads) {
  for (const int64_t length_class : {4096, 8192, 16384, 32768}) {
    for (int64_t limit = 1 << 26; limit < int64_t{1} << 35; limit = limit * 3 / 2) {
      const int64_t groups = AttentionGroups(length_class, k8b, limit);
      if (groups == 0) continue;
      EXPECT_EQ(k8b.kv_heads % groups, 0);
      EXPECT_LE(groups * AttentionGroupBytes(length_class, k8b), limit);
    }
  }
  EXPECT_EQ(AttentionGroups(16384, k8b, AttentionGroupBytes(16384, k8b) - 1), 0);
  EXPECT_EQ(AttentionGroups(16384, k8b, AttentionGroupBytes(16384, k8b)), 1);
}

// As measured: a call over a sequence that does not fill its class needs more work to be faster.
TEST(AttentionLibrary, UnfilledClassesNeedMoreWork) {
  const int64_t limit = int64_t{3} << 30;
  EXPECT_EQ(AttentionGroups(2048, k8b, limit), 8);
  EXPECT_EQ(AttentionGroups(2047, k8b, limit), 0);
  EXPECT_EQ(AttentionGroups(16383, k8b, limit), 1);
  EXPECT_EQ(AttentionGroups(1024, k8b, limit), 0);
  const TokenRange range = {2048, 16384};
  EXPECT_TRUE(LibraryTakesForward(2048, range));
  EXPECT_FALSE(LibraryTakesForward(3000, range));
  EXPECT_TRUE(LibraryTakesForward(3100, range));
  EXPECT_FALSE(LibraryTakesForward(16385, range));
}

// Neighbours of the batched length in powers of two, everything else alone, all sequences once.
TEST(AttentionLibrary, BlocksCutNeighboursOfOneLength) {
  const std::vector<int64_t> lengths = {512, 512, 512, 7,   512, 0,   512, 512,
                                        512, 512, 512, 512, 512, 100, 100};
  std::vector<int32_t> cu = {0};
  for (const int64_t n : lengths) cu.push_back(cu.back() + static_cast<int32_t>(n));
  const auto counts = [&](int64_t batched) {
    std::vector<int64_t> of;
    int64_t next = 0;
    for (const AttentionCall& b :
         AttentionCalls(cu.data(), static_cast<int64_t>(lengths.size()), batched)) {
      EXPECT_EQ(b.first, next);
      for (int64_t s = b.first; s < b.first + b.count; ++s) EXPECT_EQ(lengths[s], b.length);
      next += b.count;
      of.push_back(b.count);
    }
    EXPECT_EQ(next, static_cast<int64_t>(lengths.size()));
    return of;
  };
  EXPECT_EQ(counts(512), (std::vector<int64_t>{2, 1, 1, 1, 1, 4, 2, 1, 1, 1}));
  EXPECT_EQ(counts(100), (std::vector<int64_t>{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2}));
  EXPECT_EQ(counts(0), std::vector<int64_t>(lengths.size(), 1));
}

TEST(AttentionLibrary, OneShortLengthThatMostTokensAreOfIsBatched) {
  EXPECT_EQ(BatchedAttentionLength({512, 512, 512, 100}), 512);
  EXPECT_EQ(BatchedAttentionLength({512, 1024}), 1024);
  EXPECT_EQ(BatchedAttentionLength({512, 600, 700, 800}), 0);
  EXPECT_EQ(BatchedAttentionLength({500, 500}), 0);    // its class is 512
  EXPECT_EQ(BatchedAttentionLength({256, 256}), 0);    // not measured
  EXPECT_EQ(BatchedAttentionLength({2048, 2048}), 0);  // each has a call of its own
  EXPECT_EQ(BatchedAttentionLength({}), 0);
}

// As measured over 4,096 tokens on an H200: from 2,048 tokens a call forward, and backward from
// 2^26 elements of scores.
TEST(AttentionLibrary, BlocksNeedWork) {
  const int64_t limit = int64_t{1} << 30;
  const TokenRange range = {2048, 4096};
  EXPECT_FALSE(LibraryTakesForward(512, range, 1));
  EXPECT_FALSE(LibraryTakesForward(512, range, 2));
  EXPECT_TRUE(LibraryTakesForward(512, range, 4));
  EXPECT_FALSE(LibraryTakesForward(512, TokenRange(), 8));
  EXPECT_FALSE(LibraryTakesBackward(512, range, k8b, limit, 4));
  EXPECT_TRUE(LibraryTakesBackward(512, range, k8b, limit, 8));
  EXPECT_TRUE(LibraryTakesBackward(1024, range, k8b, limit, 2));
  EXPECT_FALSE(LibraryTakesBackward(1024, range, k8b, limit, 1));
  EXPECT_FALSE(LibraryTakesBackward(512, TokenRange(), k8b, limit, 8));
  // A limit that holds half of the heads: a call of half the work, which is too little.
  EXPECT_EQ(AttentionGroups(512, k8b, 8 * 4 * AttentionGroupBytes(512, k8b), 8), 0);
  EXPECT_EQ(AttentionGroups(512, k8b, 8 * 8 * AttentionGroupBytes(512, k8b), 8), 8);
  // cuDNN 9.14 took 201,851,136 bytes.
  const int64_t planned = AttentionCallBytes(512, k8b, limit, 8);
  EXPECT_GE(planned, 201'851'136);
  EXPECT_LE(planned, 201'851'136 + 64 * (int64_t{64} << 10));
}

// An H200 with cuDNN: 32 heads over 8 of 128.
TEST(AttentionLibrary, OurOwnKernelsTakeWhatTheyAreFasterWith) {
  const auto of = [](int64_t length, int64_t sequences, int64_t groups, bool own = true,
                     bool library = true, int64_t head_dim = 128) {
    const AttentionMakers makers =
        AttentionMakersOf(head_dim, length, sequences, groups, own, library);
    return std::make_tuple(makers.own_forward, makers.own_backward, NeedsLibrary(makers, groups));
  };
  EXPECT_EQ(of(512, 8, 8), std::make_tuple(true, true, false));
  EXPECT_EQ(of(1024, 4, 8), std::make_tuple(true, true, false));
  EXPECT_EQ(of(2048, 1, 8), std::make_tuple(true, false, true)) << "64 blocks";
  EXPECT_EQ(of(2048, 1, 0), std::make_tuple(true, false, false)) << "forward only";
  EXPECT_EQ(of(4096, 1, 4), std::make_tuple(true, false, true));
  EXPECT_EQ(of(4096, 1, 8), std::make_tuple(true, true, false));
  EXPECT_EQ(of(16384, 1, 1), std::make_tuple(false, false, true));
  EXPECT_EQ(of(16384, 1, 2), std::make_tuple(false, true, true)) << "its forward";
  EXPECT_EQ(of(16384, 1, 1, true, false), std::make_tuple(true, true, false)) << "no cuDNN";
  EXPECT_EQ(of(512, 8, 8, false), std::make_tuple(false, false, true)) << "another card";
  EXPECT_EQ(of(512, 8, 8, true, true, 64), std::make_tuple(false, false, true));
}

// What a machine tries the library with (CheckAttentionLibrary): both of its kernels, on any card
// that has our own.
TEST(AttentionLibrary, AtTheLengthItIsTriedWithBothAreTheLibrarys) {
  constexpr int64_t kTokens = 8192, kH100 = int64_t{80} << 30;
  for (const int64_t memory : {kH100, kH200}) {
    const int64_t limit = ChooseAttentionShare("cudnn", memory, kTokens, k8b).workspace_limit;
    const int64_t groups = AttentionGroups(kTokens, k8b, limit);
    ASSERT_GT(groups, 0);
    const AttentionMakers makers = AttentionMakersOf(128, kTokens, 1, groups, true, true);
    EXPECT_FALSE(makers.own_forward);
    EXPECT_FALSE(makers.own_backward);
  }
}

TEST(AttentionLibrary, ShareIsOfLongSequencesOfOneHeadDimension) {
  EXPECT_EQ(ChooseAttentionShare("", kH200, 16384, k8b).library, "");
  EXPECT_EQ(ChooseAttentionShare("cudnn-9.14.0", kH200, 1920, k8b).library, "");
  EXPECT_EQ(ChooseAttentionShare("cudnn-9.14.0", kH200, 16384, {9, 3, 64}).library, "");
  const AttentionShare share = ChooseAttentionShare("cudnn-9.14.0", kH200, 16384, k8b);
  EXPECT_EQ(share.library, "cudnn-9.14.0");
  EXPECT_TRUE(share.forward.holds(4096));
  EXPECT_TRUE(share.forward.holds(16384));
  EXPECT_FALSE(share.forward.holds(512));
  EXPECT_TRUE(share.backward.holds(16384));
  // Statistics are kept for so many rows of heads, and no more.
  EXPECT_EQ(ChooseAttentionShare("cudnn-9.14.0", kH200, 131072, k8b).forward.most, 32768);
}

// A card too small for the backward's workspace keeps the forward, which takes none.
TEST(AttentionLibrary, SmallCardsTakeTheForwardAlone) {
  const AttentionShare share = ChooseAttentionShare("cudnn-9.14.0", int64_t{8} << 30, 16384, k8b);
  EXPECT_TRUE(share.forward.holds(16384));
  EXPECT_FALSE(share.backward.holds(16384));
  EXPECT_EQ(share.workspace_limit, 0);
  EXPECT_EQ(AttentionWorkspaceBytes(16384, k8b, share), 0);
}

TEST(AttentionLibrary, WorkspaceHoldsEverySequenceOfAnItem) {
  for (const int64_t item : {4096, 5000, 8192, 16384}) {
    const AttentionShare share = ChooseAttentionShare("cudnn-9.14.0", kH200, item, k8b);
    int64_t last = 0;
    for (int64_t tokens = 1024; tokens <= item; tokens += 64) {
      const int64_t bytes = AttentionWorkspaceBytes(tokens, k8b, share);
      EXPECT_GE(bytes, last);
      EXPECT_LE(bytes, share.workspace_limit);
      last = bytes;
      if (!share.backward.holds(tokens)) continue;
      EXPECT_GE(bytes, AttentionGroups(tokens, k8b, share.workspace_limit) *
                           AttentionGroupBytes(AttentionLengthClass(tokens), k8b));
    }
  }
}

}  // namespace
}  // namespace soup::engine
