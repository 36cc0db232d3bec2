// Stands in for cudnn_attention.cc in a build without cuDNN's headers.
#include "kernels/cuda/cudnn_attention.h"

namespace soup::kernels::cuda {

int64_t CudnnAttention::ScratchBytes(int64_t) { return 0; }

std::unique_ptr<CudnnAttention> CudnnAttention::Create(void*, int64_t, cudaStream_t,
                                                       std::string* error) {
  *error = "this build was made without cuDNN's headers";
  return nullptr;
}

}  // namespace soup::kernels::cuda
