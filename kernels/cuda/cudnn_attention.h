// Attention by cuDNN beside our own kernels (attention.h): causal without window or soft cap, GQA,
// bf16 with fp32 softmax. A call takes one sequence of a packed micro-batch, or several neighbours
// of one length. Same layouts and the same meaning of lse as there, so that an item's sequences can
// be shared between the two.
//
// A sequence runs by the plan of its class, a length >= its own; the true length is told on the
// device (ragged offsets), and neither rows nor columns beyond it are read or written. Where the
// two are equal a plan without lengths and masks for them runs faster (`exact`). The backward is
// deterministic: dS of the heads of a call lies in the workspace, 2 bytes an element, therefore it
// takes `groups` key-value heads a call with their query heads. Reruns give the same bits; another
// version of the library may give others.
//
// Plans are made by Prepare and never during a run. Not thread-safe: one stream drives it.
#ifndef SOUP_KERNELS_CUDA_CUDNN_ATTENTION_H_
#define SOUP_KERNELS_CUDA_CUDNN_ATTENTION_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/ops.h"

namespace soup::kernels::cuda {

// All that a plan depends on. Strides in elements.
struct CudnnAttentionShape {
  int64_t length_class = 0;  // tokens
  bool exact = false;        // for sequences of just that length
  int64_t Hq = 0, Hkv = 0, D = 0;
  int64_t row_stride = 0;  // of q, k, v and of dq, dk, dv
  int64_t groups = 0;      // key-value heads a backward call; divides Hkv
  int64_t sequences = 1;   // a call, one behind the other; more than one only where `exact`
};

// Where in a packed micro-batch a sequence, or the first of a call's, lies.
struct CudnnSequence {
  int64_t first = 0;  // row
  int64_t length = 0;
};

class CudnnAttention {
 public:
  // Bytes of Scratch for shapes of at most `rows` sequences * Hq * length_class.
  static int64_t ScratchBytes(int64_t rows);

  // Null, and why in `error`, when there is no library or it refuses the device. `scratch` is
  // device memory, 256-byte aligned, that nothing else on `stream` touches between two ops.
  static std::unique_ptr<CudnnAttention> Create(void* scratch, int64_t scratch_bytes,
                                                cudaStream_t stream, std::string* error);
  virtual ~CudnnAttention() = default;

  // "9.14.0": part of what decides bits.
  virtual std::string version() const = 0;

  // Makes the plans of a shape, forward and backward, unless they are there. `workspace_bytes`:
  // what a backward call takes. False, and why in `error`, when the library has no deterministic
  // plan or the scratch is too small.
  virtual bool Prepare(const CudnnAttentionShape& shape, int64_t* workspace_bytes,
                       std::string* error) = 0;

  // The args' cu_seqlens and S are not looked at; T is the row length of lse. Errors:
  // cudaErrorNotReady (a shape that was not prepared), cudaErrorInvalidValue (a window within a
  // sequence, a soft cap), cudaErrorLaunchFailure (the library says no: last_error()).
  virtual cudaError_t Forward(const AttentionForwardArgs& args, const CudnnAttentionShape& shape,
                              const CudnnSequence& sequence) = 0;
  // `workspace`: 256-byte aligned. delta of the args is not used.
  virtual cudaError_t Backward(const AttentionBackwardArgs& args, const CudnnAttentionShape& shape,
                               const CudnnSequence& sequence, void* workspace,
                               int64_t workspace_bytes) = 0;
  virtual const std::string& last_error() const = 0;
};

}  // namespace soup::kernels::cuda

#endif  // SOUP_KERNELS_CUDA_CUDNN_ATTENTION_H_
