// One entry a target, with libFuzzer's signature: bytes of a stranger into one of our readers. It
// must end, in bounded memory, whatever they are. With SOUP_BUILD_FUZZERS (clang) libFuzzer drives
// it; in the ordinary tests replay_main.cc runs the corpus through it.
#ifndef SOUP_TESTS_FUZZ_FUZZ_TARGET_H_
#define SOUP_TESTS_FUZZ_FUZZ_TARGET_H_

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

#endif  // SOUP_TESTS_FUZZ_FUZZ_TARGET_H_
