#include "engine/train/mirror.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace soup::engine {
namespace {

constexpr char kMagic[8] = {'S', 'O', 'U', 'P', 'M', 'I', 'R', '1'};
constexpr char kFileName[] = "mirror.bin";
constexpr int64_t kPage = 4096;
// Copied and hashed in pieces that stay in the cache in between.
constexpr int64_t kPiece = 256 << 10;

// First page of the file.
struct FileHeader {
  char magic[8];
  int64_t elements;
  int64_t half_bytes;
  uint64_t checksum;  // XXH3-64 of the fields before
};

uint64_t ChecksumOf(const FileHeader& header) {
  return XXH3_64bits(&header, offsetof(FileHeader, checksum));
}

int64_t RoundUpToPage(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// XXH3-64 in pieces.
class Hasher {
 public:
  explicit Hasher(uint64_t sequence) : state_(XXH3_createState()) {
    SOUP_CHECK(state_ != nullptr);
    XXH3_64bits_reset(state_.get());
    Add(&sequence, sizeof sequence);
  }
  void Add(const void* data, size_t bytes) { XXH3_64bits_update(state_.get(), data, bytes); }
  uint64_t Digest() const { return XXH3_64bits_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

}  // namespace

// A half: this, padded to kHalfHeaderBytes, then weights, exp_avg, exp_avg_sq.
struct Mirror::HalfHeader {
  std::atomic<uint64_t> sequence;  // written last; 0: the half is being written
  uint64_t checksum;               // of the sequence, of `fields`, of the vectors
  struct Fields {
    int64_t step;
    int64_t optimizer_steps;
    int64_t skipped;
    uint64_t plan_hash;
    int64_t stats_bytes;
    char stats[kMaxStatsBytes];  // zeros after stats_bytes
  } fields;

  float* vectors() { return reinterpret_cast<float*>(reinterpret_cast<std::byte*>(this) + kBytes); }
  const float* vectors() const { return const_cast<HalfHeader*>(this)->vectors(); }

  static constexpr int64_t kBytes = 2 * kPage;
};

namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free);

int64_t HalfBytes(int64_t elements, int64_t header_bytes) {
  return header_bytes + RoundUpToPage(3 * elements * static_cast<int64_t>(sizeof(float)));
}

// An fd and a mapping of a whole file.
struct Mapped {
  int fd = -1;
  std::byte* map = nullptr;
};

absl::StatusOr<Mapped> MapFile(const std::string& path, int64_t bytes) {
  Mapped m;
  m.fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (m.fd < 0) return ErrnoStatus(errno, "open", path);
  absl::Cleanup closer = [&m] { close(m.fd); };
  struct stat st;
  if (fstat(m.fd, &st) != 0) return ErrnoStatus(errno, "stat", path);
  if (st.st_size < bytes) {
    return absl::DataLossError(absl::StrCat(path, " has ", st.st_size, " bytes and needs ", bytes));
  }
  void* map =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, m.fd, 0);
  if (map == MAP_FAILED) return ErrnoStatus(errno, "map", path, bytes);
  m.map = static_cast<std::byte*>(map);
  std::move(closer).Cancel();
  return m;
}

// Makes the file under a name beside it and renames it: under its own name it is always of full
// size, with a whole header.
absl::Status MakeFile(FileSystem& fs, const std::string& path, int64_t elements,
                      int64_t half_bytes) {
  const std::string fresh = absl::StrCat(path, ".new");
  SOUP_RETURN_IF_ERROR(fs.Remove(fresh));
  absl::Cleanup remover = [&fs, &fresh] { fs.Remove(fresh).IgnoreError(); };
  const int64_t bytes = kPage + 2 * half_bytes;
  SOUP_RETURN_IF_ERROR(fs.ReserveFile(fresh, bytes));
  SOUP_ASSIGN_OR_RETURN(const Mapped m, MapFile(fresh, bytes));
  FileHeader header = {};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.elements = elements;
  header.half_bytes = half_bytes;
  header.checksum = ChecksumOf(header);
  std::memcpy(m.map, &header, sizeof header);
  const int synced = msync(m.map, static_cast<size_t>(kPage), MS_SYNC);
  const int error = errno;
  munmap(m.map, static_cast<size_t>(bytes));
  close(m.fd);
  if (synced != 0) return ErrnoStatus(error, "fsync", fresh);
  return fs.RenameSynced(fresh, path);
}

}  // namespace

absl::Status Mirror::Remove(FileSystem& fs, const std::string& directory) {
  return fs.Remove(JoinPath(directory, kFileName));
}

absl::StatusOr<std::unique_ptr<Mirror>> Mirror::Open(FileSystem& fs, const std::string& directory,
                                                     int64_t elements) {
  static_assert(sizeof(HalfHeader) <= HalfHeader::kBytes);
  if (elements < 1) {
    return absl::InvalidArgumentError(absl::StrCat("a mirror of ", elements, " elements"));
  }
  auto mirror = absl::WrapUnique(new Mirror);
  mirror->path_ = JoinPath(directory, kFileName);
  mirror->elements_ = elements;
  const int64_t half_bytes = HalfBytes(elements, HalfHeader::kBytes);
  mirror->file_bytes_ = kPage + 2 * half_bytes;
  const std::string& path = mirror->path_;

  SOUP_RETURN_IF_ERROR(fs.CreateDirectories(directory));
  if (!fs.Exists(path)) SOUP_RETURN_IF_ERROR(MakeFile(fs, path, elements, half_bytes));

  // The header first: a file of another adapter has another size.
  {
    SOUP_ASSIGN_OR_RETURN(const Mapped head, MapFile(path, kPage));
    FileHeader header;
    std::memcpy(&header, head.map, sizeof header);
    munmap(head.map, static_cast<size_t>(kPage));
    close(head.fd);
    if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 ||
        header.checksum != ChecksumOf(header)) {
      return absl::DataLossError(absl::StrCat(path, " is not a mirror, or its header is broken"));
    }
    if (header.elements != elements || header.half_bytes != half_bytes) {
      return absl::FailedPreconditionError(absl::StrCat(
          path, " is of an adapter of ", header.elements, " elements, the job's has ", elements));
    }
  }
  SOUP_ASSIGN_OR_RETURN(const Mapped m, MapFile(path, mirror->file_bytes_));
  mirror->fd_ = m.fd;
  mirror->map_ = m.map;
  if (flock(m.fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, "lock", path);
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is held by another process; wait until the old worker is gone"));
  }
  for (int i : {0, 1}) {
    const uint64_t sequence = mirror->half(i)->sequence.load(std::memory_order_acquire);
    if (sequence > mirror->sequence_ && mirror->Valid(i)) {
      mirror->sequence_ = sequence;
      mirror->newest_ = i;
    }
  }
  return mirror;
}

Mirror::~Mirror() {
  if (map_ != nullptr) munmap(map_, static_cast<size_t>(file_bytes_));
  if (fd_ >= 0) close(fd_);  // Gives the lock back.
}

Mirror::HalfHeader* Mirror::half(int i) const {
  const int64_t half_bytes = (file_bytes_ - kPage) / 2;
  return reinterpret_cast<HalfHeader*>(map_ + kPage + i * half_bytes);
}

bool Mirror::Valid(int i) const {
  const HalfHeader& h = *half(i);
  const uint64_t sequence = h.sequence.load(std::memory_order_acquire);
  if (sequence == 0 || h.fields.stats_bytes < 0 || h.fields.stats_bytes > kMaxStatsBytes) {
    return false;
  }
  Hasher hasher(sequence);
  hasher.Add(&h.fields, sizeof h.fields);
  hasher.Add(h.vectors(), static_cast<size_t>(3 * elements_) * sizeof(float));
  return hasher.Digest() == h.checksum;
}

absl::StatusOr<std::optional<AdapterState>> Mirror::Read() const {
  if (newest_ < 0) {
    for (int i : {0, 1}) {
      if (half(i)->sequence.load(std::memory_order_acquire) == 0) continue;
      return absl::DataLossError(
          absl::StrCat(path_,
                       ": neither half is whole (a power loss leaves this); go on from the "
                       "last checkpoint"));
    }
    return std::optional<AdapterState>();
  }
  const HalfHeader& h = *half(newest_);
  AdapterState state;
  const float* vector = h.vectors();
  for (std::vector<float>* v : {&state.weights, &state.exp_avg, &state.exp_avg_sq}) {
    v->assign(vector, vector + elements_);
    vector += elements_;
  }
  state.step = h.fields.step;
  state.optimizer_steps = h.fields.optimizer_steps;
  state.skipped = h.fields.skipped;
  state.plan_hash = h.fields.plan_hash;
  state.stats.assign(h.fields.stats, static_cast<size_t>(h.fields.stats_bytes));
  return std::optional<AdapterState>(std::move(state));
}

absl::Status Mirror::Commit(const AdapterStateView& state) {
  for (absl::Span<const float> v : {state.weights, state.exp_avg, state.exp_avg_sq}) {
    if (static_cast<int64_t>(v.size()) != elements_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a vector of ", v.size(), " elements does not go into ", path_, ", of ", elements_));
    }
  }
  if (static_cast<int64_t>(state.stats.size()) > kMaxStatsBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("stats of ", state.stats.size(), " bytes; a mirror holds ", kMaxStatsBytes));
  }
  const int older = newest_ == 0 ? 1 : 0;
  HalfHeader& h = *half(older);
  const uint64_t sequence = sequence_ + 1;
  h.sequence.store(0, std::memory_order_relaxed);
  // No store into the half passes the one above, by the compiler or the processor.
  std::atomic_thread_fence(std::memory_order_seq_cst);

  Hasher hasher(sequence);
  h.fields.step = state.step;
  h.fields.optimizer_steps = state.optimizer_steps;
  h.fields.skipped = state.skipped;
  h.fields.plan_hash = state.plan_hash;
  h.fields.stats_bytes = static_cast<int64_t>(state.stats.size());
  std::memset(h.fields.stats, 0, sizeof h.fields.stats);
  std::copy(state.stats.begin(), state.stats.end(), h.fields.stats);
  hasher.Add(&h.fields, sizeof h.fields);
  float* to = h.vectors();
  for (absl::Span<const float> v : {state.weights, state.exp_avg, state.exp_avg_sq}) {
    for (int64_t at = 0; at < elements_; at += kPiece / 4) {
      const int64_t n = std::min<int64_t>(kPiece / 4, elements_ - at);
      std::memcpy(to + at, v.data() + at, static_cast<size_t>(n) * sizeof(float));
      hasher.Add(to + at, static_cast<size_t>(n) * sizeof(float));
    }
    to += elements_;
  }
  h.checksum = hasher.Digest();
  h.sequence.store(sequence, std::memory_order_release);
  sequence_ = sequence;
  newest_ = older;
  return absl::OkStatus();
}

absl::Status RemoveMirror(FileSystem& fs, const std::string& directory) {
  return fs.RemoveTree(directory);
}

}  // namespace soup::engine
