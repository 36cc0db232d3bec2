// Constants of the prepared dataset's file (see dataset.h), shared by its reader and its writer.
#ifndef SOUP_ENGINE_DATA_DATASET_FORMAT_H_
#define SOUP_ENGINE_DATA_DATASET_FORMAT_H_

#include <cstdint>

namespace soup::engine {

inline constexpr char kDatasetMagic[8] = {'S', 'O', 'U', 'P', 'D', 'S', '0', '1'};
// Everything but the header JSON and the arrays: magic, header size, three counts, checksum. The
// writer pads the JSON with blanks to a multiple of 8, so that the arrays after it are aligned.
inline constexpr uint64_t kDatasetFixedBytes = 8 + 8 + 3 * 8 + 8;
// Lengths are int32 everywhere after.
inline constexpr uint64_t kMaxRecordTokens = 0x7fffffff;

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DATA_DATASET_FORMAT_H_
