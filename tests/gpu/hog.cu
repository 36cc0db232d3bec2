// A stranger on the card: takes device memory until only so much is left, and holds it until its
// input ends.
//   nvcc hog.cu -o hog && ./hog LEAVE_MIB
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  const size_t leave = (argc > 1 ? strtoul(argv[1], nullptr, 10) : 200) << 20;
  size_t free = 0, total = 0, held = 0;
  for (size_t piece = size_t{1} << 30; piece >= size_t{2} << 20; piece /= 2) {
    while (cudaMemGetInfo(&free, &total) == cudaSuccess && free > leave + piece) {
      void* block = nullptr;
      if (cudaMalloc(&block, piece) != cudaSuccess) break;
      cudaMemset(block, 1, piece);
      held += piece;
    }
    cudaGetLastError();
  }
  cudaDeviceSynchronize();
  cudaMemGetInfo(&free, &total);
  printf("holding %zu MiB, %zu MiB free\n", held >> 20, free >> 20);
  fflush(stdout);
  while (getchar() != EOF) {
  }
}
