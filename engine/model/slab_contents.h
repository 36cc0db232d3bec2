// What each slab is assembled from: the checkpoint's tensors by name, their shapes, and where they
// go. The same list says which tensors a checkpoint must hold. Pure; any thread.
#ifndef SOUP_ENGINE_MODEL_SLAB_CONTENTS_H_
#define SOUP_ENGINE_MODEL_SLAB_CONTENTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/model/layer_layout.h"
#include "engine/model/model_spec.h"

namespace soup::engine {

struct SlabTensor {
  std::string name;            // in the checkpoint
  std::vector<int64_t> shape;  // [rows, cols], or [n] of a norm
  bool is_linear = false;      // a layer's matrix, stored in the base's format; else bf16
  MatrixLayout matrix;         // is_linear: where its parts go
  int64_t offset = 0;          // not is_linear: bytes from the slab's start
};

// Slabs 0 .. layers-1 are layers, slab `layers` the globals.
int64_t SlabCount(const ModelSpec& spec);
int64_t SlabBytes(const ModelSpec& spec, BaseFormat format, int64_t slab);
std::vector<SlabTensor> SlabContents(const ModelSpec& spec, BaseFormat format, int64_t slab);

// Tensors that checkpoints carry and that are computed, not read: rotary tables, and the head's
// copy where it is tied to the embedding.
bool IsDerivedTensor(const ModelSpec& spec, absl::string_view name);

}  // namespace soup::engine

#endif  // SOUP_ENGINE_MODEL_SLAB_CONTENTS_H_
