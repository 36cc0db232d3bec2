// Which cards are taken: in every build, with a card or without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/device/cuda_backend.h"

namespace soup::engine {
namespace {

using ::testing::HasSubstr;

TEST(CudaCard, OlderThanAmpereIsRefusedByName) {
  struct Card {
    const char* name;
    int major, minor;
  };
  for (const Card& old : {Card{"Tesla T4", 7, 5}, Card{"Tesla V100", 7, 0},
                          Card{"GeForce GTX 1080 Ti", 6, 1}, Card{"Tesla K80", 3, 7}}) {
    const absl::Status status = CheckCudaCard(old.name, old.major, old.minor);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << old.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(old.name));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("sm_" + std::to_string(old.major) + std::to_string(old.minor)));
    EXPECT_THAT(std::string(status.message()), HasSubstr("--backend cpu"));
  }
  for (const Card& taken :
       {Card{"NVIDIA A100", 8, 0}, Card{"GeForce RTX 3050", 8, 6}, Card{"NVIDIA L4", 8, 9},
        Card{"NVIDIA H200", 9, 0}, Card{"GeForce RTX 5090", 12, 0}}) {
    EXPECT_TRUE(CheckCudaCard(taken.name, taken.major, taken.minor).ok()) << taken.name;
  }
}

}  // namespace
}  // namespace soup::engine
