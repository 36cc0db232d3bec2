#include "engine/model/layer_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/model/slab_contents.h"
#include "tests/support/seeded_rng.h"

namespace soup::engine {
namespace {

constexpr BaseFormat kFormats[] = {BaseFormat::kBf16, BaseFormat::kNf4,
                                   BaseFormat::kNf4DoubleQuant};

ModelSpec RandomSpec(soup::testing::SeededRng& rng) {
  ModelSpec spec;
  spec.family = "llama";
  spec.kv_heads = rng.Int(1, 4);
  spec.heads = spec.kv_heads * rng.Int(1, 4);
  spec.head_dim = 2 * rng.Int(1, 24);
  spec.hidden = rng.Int(1, 200);
  spec.intermediate = rng.Int(1, 300);
  spec.layers = rng.Int(1, 4);
  spec.vocab = rng.Int(1, 500);
  spec.tied_head = rng.Chance(0.5);
  return spec;
}

struct Range {
  int64_t begin, end;
};

void ExpectDisjointWithin(std::vector<Range> ranges, int64_t bytes) {
  std::sort(ranges.begin(), ranges.end(), [](Range a, Range b) { return a.begin < b.begin; });
  int64_t end = 0;
  for (const Range& r : ranges) {
    EXPECT_GE(r.begin, end);
    end = r.end;
  }
  EXPECT_LE(end, bytes);
}

std::vector<Range> Ranges(const SlabTensor& t, BaseFormat format) {
  if (!t.is_linear) {
    int64_t bytes = 2;
    for (int64_t d : t.shape) bytes *= d;
    return {{t.offset, t.offset + bytes}};
  }
  const MatrixLayout& m = t.matrix;
  std::vector<Range> out = {{m.data_offset, m.data_offset + m.data_bytes}};
  if (format == BaseFormat::kNf4)
    out.push_back({m.absmax_offset, m.absmax_offset + 4 * m.blocks()});
  if (format == BaseFormat::kNf4DoubleQuant) {
    out.push_back({m.absmax_offset, m.absmax_offset + m.blocks()});
    out.push_back({m.nested_absmax_offset, m.nested_absmax_offset + 4 * m.nested_blocks()});
    out.push_back({m.offset_offset, m.offset_offset + 4});
  }
  return out;
}

TEST(LayerLayout, PartsNeverOverlapAndLieInTheSlab) {
  soup::testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  for (int round = 0; round < 300; ++round) {
    const ModelSpec spec = RandomSpec(rng);
    for (BaseFormat format : kFormats) {
      for (int64_t slab = 0; slab < SlabCount(spec); ++slab) {
        std::vector<Range> all;
        for (const SlabTensor& t : SlabContents(spec, format, slab)) {
          for (const Range& r : Ranges(t, format)) all.push_back(r);
        }
        ExpectDisjointWithin(all, SlabBytes(spec, format, slab));
        EXPECT_EQ(SlabBytes(spec, format, slab) % 256, 0);
      }
    }
  }
}

TEST(LayerLayout, GroupsAreOneMatrixInBf16) {
  soup::testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  for (int round = 0; round < 300; ++round) {
    const ModelSpec spec = RandomSpec(rng);
    const LayerLayout layout = MakeLayerLayout(spec, BaseFormat::kBf16);
    std::array<int64_t, kGroups> rows{}, start{};
    for (const MatrixLayout& m : layout.matrices) {
      if (m.rows == 0) continue;
      const int g = static_cast<int>(m.group);
      const GroupShape shape = MakeGroupShape(spec, m.group);
      EXPECT_EQ(m.cols, shape.cols);
      EXPECT_EQ(m.group_row, rows[g]);
      if (rows[g] == 0) {
        start[g] = m.data_offset;
        EXPECT_EQ(m.data_offset % 256, 0);
      }
      EXPECT_EQ(m.data_offset, start[g] + m.group_row * m.cols * 2);
      rows[g] += m.rows;
    }
    for (int g = 0; g < kGroups; ++g) {
      EXPECT_EQ(rows[g], MakeGroupShape(spec, static_cast<Group>(g)).rows);
    }
  }
}

TEST(LayerLayout, Nf4PartsAreAligned) {
  soup::testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  const ModelSpec spec = RandomSpec(rng);
  for (BaseFormat format : {BaseFormat::kNf4, BaseFormat::kNf4DoubleQuant}) {
    for (const MatrixLayout& m : MakeLayerLayout(spec, format).matrices) {
      if (m.rows == 0) continue;
      EXPECT_EQ(m.data_offset % 256, 0);
      EXPECT_EQ(m.absmax_offset % 256, 0);
      EXPECT_EQ(m.data_bytes, (m.rows * m.cols + 1) / 2);
      EXPECT_EQ(m.nested_absmax_offset >= 0, format == BaseFormat::kNf4DoubleQuant);
    }
  }
}

TEST(LayerLayout, TiedHeadIsTheEmbedding) {
  soup::testing::SeededRng rng(7);
  ModelSpec spec = RandomSpec(rng);
  spec.tied_head = true;
  const GlobalsLayout tied = MakeGlobalsLayout(spec);
  EXPECT_EQ(tied.head_offset, tied.embedding_offset);
  spec.tied_head = false;
  const GlobalsLayout untied = MakeGlobalsLayout(spec);
  EXPECT_GT(untied.head_offset, untied.final_norm_offset);
  EXPECT_GT(untied.bytes, tied.bytes);
}

TEST(LayerLayout, LargestModelDoesNotOverflow) {
  ModelSpec spec;
  spec.hidden = int64_t{1} << 18;
  spec.intermediate = int64_t{1} << 20;
  spec.layers = 4096;
  spec.heads = spec.kv_heads = 4096;
  spec.head_dim = 1024;
  spec.vocab = int64_t{1} << 24;
  for (BaseFormat format : kFormats) {
    EXPECT_GT(SlabBytes(spec, format, 0), 0);
    EXPECT_GT(SlabBytes(spec, format, 0) * spec.layers, 0);
    EXPECT_GT(SlabBytes(spec, format, spec.layers), 0);
  }
}

TEST(SlabContents, NamesAreHuggingFacesAndUnique) {
  soup::testing::SeededRng rng(3);
  ModelSpec spec = RandomSpec(rng);
  spec.layers = 2;
  spec.tied_head = false;
  std::set<std::string> names;
  for (int64_t slab = 0; slab < SlabCount(spec); ++slab) {
    for (const SlabTensor& t : SlabContents(spec, BaseFormat::kBf16, slab)) {
      EXPECT_TRUE(names.insert(t.name).second) << t.name;
    }
  }
  EXPECT_EQ(names.size(), 2u * 9 + 3);
  for (const char* name : {"model.layers.1.self_attn.q_proj.weight", "model.norm.weight",
                           "model.layers.0.post_attention_layernorm.weight", "lm_head.weight",
                           "model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
  EXPECT_FALSE(IsDerivedTensor(spec, "lm_head.weight"));
  spec.tied_head = true;
  EXPECT_TRUE(IsDerivedTensor(spec, "lm_head.weight"));
  EXPECT_TRUE(IsDerivedTensor(spec, "model.layers.0.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(IsDerivedTensor(spec, "model.layers.0.self_attn.q_proj.bias"));
}

TEST(BaseFormat, NamesParseBackAndOthersAreRefused) {
  for (BaseFormat format : kFormats) {
    EXPECT_EQ(*ParseBaseFormat(BaseFormatName(format)), format);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ParseBaseFormat("int8").status()));
  for (int i = 0; i < kModules; ++i) {
    const Module m = static_cast<Module>(i);
    EXPECT_EQ(*ParseModule(ModuleName(m)), m);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ParseModule("qv_proj").status()));
}

}  // namespace
}  // namespace soup::engine
