// Rotary frequencies: the tables of a model, and which of them a layer turns a sequence by.
//
// A model has one table, or several: another for layers with rope parameters of their own (gemma3),
// and under longrope another for sequences longer than the original context. Transformers chooses
// between longrope's two by the longest row of a batch; here each sequence is its own row. Source
// of the formulas: transformers modeling_rope_utils (arXiv 2104.09864; llama3: Llama 3.1 model
// card; yarn: arXiv 2309.00071; longrope: arXiv 2402.13753). Dynamic scaling begins beyond
// max_position_embeddings, where no record is accepted: within it, it is plain rope. Pure; any
// thread.
#ifndef SOUP_ENGINE_MODEL_ROPE_TABLE_H_
#define SOUP_ENGINE_MODEL_ROPE_TABLE_H_

#include <cstdint>
#include <vector>

#include "engine/model/model_spec.h"

namespace soup::engine {

// inv_freq [rotary_dim / 2] of one parameter set, in double as Hugging Face's formulas, rounded
// once. `long_sequence` matters to longrope only.
std::vector<float> RopeFrequencies(const RopeSpec& rope, int64_t rotary_dim, bool long_sequence);
// Those of the model's (global) parameters for short sequences.
std::vector<float> RopeInverseFrequencies(const ModelSpec& spec);

// All tables of a model, one after another, each [rotary / 2].
std::vector<float> RopeTables(const ModelSpec& spec);
int64_t RopeTableFloats(const ModelSpec& spec);

struct RopeUse {
  int64_t offset = 0;  // of the table in RopeTables, in floats
  float scale = 1;     // of cosines and sines
};
RopeUse RopeFor(const ModelSpec& spec, int64_t layer, int64_t sequence_length);
// The length above which RopeFor answers otherwise; 0: it never does.
int64_t RopeLengthLimit(const ModelSpec& spec, int64_t layer);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_MODEL_ROPE_TABLE_H_
